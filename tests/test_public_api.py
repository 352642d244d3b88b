"""The plugins of this repository have no privileges, and the public names are what they say."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import narrowpass
import narrowpass_ir
from narrowpass import public
from narrowpass_ir import public as ir_public

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    file
    for pattern in ("core/src", "plugins/*/src", "plugin_*/src")
    for folder in ROOT.glob(pattern)
    for file in folder.rglob("*.py")
)

LISTED = {"narrowpass": public.PUBLIC_MODULES, "narrowpass_ir": ir_public.PUBLIC_MODULES}
"""The packages whose public modules are listed: the core and the library for models."""

LIBRARIES = (
    "narrowpass_analysis",
    "narrowpass_expansion",
    "narrowpass_planning",
    "narrowpass_reference",
    "narrowpass_testing",
)
"""Packages beside the core that others build on: a module is public unless its name is private."""

MODULES = {
    module.name
    for package in (narrowpass, narrowpass_ir)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
}


def private_uses(source: str) -> Iterator[str]:
    """Yield the private names of shared packages that a module imports or reaches through them."""
    aliases = {*LISTED, *LIBRARIES}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                package = name.name.partition(".")[0]
                if package in LIBRARIES:
                    aliases.add(name.asname or package)
                    yield from (name.name for part in name.name.split(".") if part[0] == "_")
                if package in LISTED:
                    aliases.add(name.asname or package)
                    if name.name not in (package, *LISTED[package]):
                        yield name.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 0 and module.partition(".")[0] in LIBRARIES:
                parts = [*module.split("."), *(name.name for name in node.names)]
                yield from (f"{module}: {part}" for part in parts if part[0] == "_")
            package = module.partition(".")[0]
            if node.level == 0 and package in LISTED:
                if module not in (package, *LISTED[package]):
                    yield module
                yield from (f"{module}: {n.name}" for n in node.names if n.name[0] == "_")
                inner = {f"{module}.{name.name}" for name in node.names}
                yield from sorted(name for name in inner & MODULES if name not in LISTED[package])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            root = ast.unparse(node).partition(".")[0]
            if root in aliases and not node.attr.startswith("__"):
                yield ast.unparse(node)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_plugins_use_only_public_names(file: Path) -> None:
    own = {file.relative_to(ROOT).parts[file.relative_to(ROOT).parts.index("src") + 1]}
    found = private_uses(file.read_text(encoding="utf-8"))
    assert [use for use in found if use.partition(".")[0].partition(":")[0] not in own] == []


@pytest.mark.parametrize(
    "source",
    [
        "from narrowpass_testing._feeds import random_feeds",
        "from narrowpass import _private",
        "from narrowpass_planning.weights import _private",
        "import narrowpass_ir.verify._structure",
        "from narrowpass_ir.io.load import parse_model",
        "from narrowpass_ir.verify import _structure",
        "import narrowpass.framework.importing",
        "from narrowpass.framework.importing import importer_of",
        "from narrowpass.framework import importing",
        "import narrowpass as n\nn._MODULE_OF",
        "def f():\n    from narrowpass._x import y",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert list(private_uses(source))


@pytest.mark.parametrize("package", LISTED)
def test_public_modules_are_a_sorted_list_of_modules(package: str) -> None:
    assert list(LISTED[package]) == sorted(set(LISTED[package]))
    assert set(LISTED[package]) <= MODULES
    assert all(name.startswith(f"{package}.") for name in LISTED[package])
    assert not [name for name in LISTED[package] if "._" in name]


IR_SOURCES = sorted((ROOT / "core" / "src" / "narrowpass_ir").rglob("*.py"))


@pytest.mark.parametrize("file", IR_SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_library_for_models_imports_none_of_the_others(file: Path) -> None:
    packages = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages.update(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "").partition(".")[0])
    assert {name for name in packages if name.startswith("narrowpass")} <= {"narrowpass_ir"}


def test_errors_of_models_are_those_of_the_core() -> None:
    """`narrowpass.errors` has them too, so that one module names all exceptions."""
    from narrowpass import errors
    from narrowpass_ir import errors as ir_errors

    names = {name for name, value in vars(ir_errors).items() if isinstance(value, type)}
    assert names <= set(errors.__all__)
    assert all(getattr(errors, name) is getattr(ir_errors, name) for name in names)


def test_plugins_were_found() -> None:
    assert any("narrowpass_hello" in file.parts for file in SOURCES)


def test_public_names_survive_the_import_of_every_module() -> None:
    """A submodule of the same name must not take the place of a public function."""
    for module in pkgutil.walk_packages(narrowpass.__path__, "narrowpass."):
        if module.name.rpartition(".")[2] not in ("__main__", "train_digits"):
            importlib.import_module(module.name)
    for name in narrowpass.__all__:
        assert not isinstance(getattr(narrowpass, name), types.ModuleType), name


def test_all_is_what_dir_lists() -> None:
    assert set(narrowpass.__all__) <= set(dir(narrowpass))
    assert narrowpass.__all__ == sorted(narrowpass.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = narrowpass.no_such_name


@pytest.mark.parametrize(
    "module",
    ["narrowpass", "narrowpass.errors", "narrowpass_constant_folding", "narrowpass_hello"],
)
def test_entry_modules_import_nothing_heavy(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"onnx", "onnx_ir", "numpy", "click", "rich", "ml_dtypes", "safetensors"}
    assert heavy.isdisjoint(done.stdout.split())
