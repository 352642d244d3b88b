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
from narrowpass.public import PUBLIC_MODULES

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    file
    for pattern in ("plugins/*/src", "plugin_*/src")
    for folder in ROOT.glob(pattern)
    for file in folder.rglob("*.py")
)

LIBRARIES = (
    "narrowpass_analysis",
    "narrowpass_expansion",
    "narrowpass_planning",
    "narrowpass_reference",
    "narrowpass_testing",
)
"""Packages beside the core that others build on: a module is public unless its name is private."""

MODULES = {module.name for module in pkgutil.walk_packages(narrowpass.__path__, "narrowpass.")}


def private_uses(source: str) -> Iterator[str]:
    """Yield the private names of shared packages that a module imports or reaches through them."""
    aliases = {"narrowpass", *LIBRARIES}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                package = name.name.partition(".")[0]
                if package in LIBRARIES:
                    aliases.add(name.asname or package)
                    yield from (name.name for part in name.name.split(".") if part[0] == "_")
                if package == "narrowpass":
                    aliases.add(name.asname or package)
                    if name.name not in ("narrowpass", *PUBLIC_MODULES):
                        yield name.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 0 and module.partition(".")[0] in LIBRARIES:
                parts = [*module.split("."), *(name.name for name in node.names)]
                yield from (f"{module}: {part}" for part in parts if part[0] == "_")
            if node.level == 0 and module.partition(".")[0] == "narrowpass":
                if module not in ("narrowpass", *PUBLIC_MODULES):
                    yield module
                yield from (f"{module}: {n.name}" for n in node.names if n.name[0] == "_")
                inner = {f"{module}.{name.name}" for name in node.names}
                yield from sorted(name for name in inner & MODULES if name not in PUBLIC_MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            root = ast.unparse(node).partition(".")[0]
            if root in aliases and not node.attr.startswith("__"):
                yield ast.unparse(node)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_plugins_use_only_public_names(file: Path) -> None:
    own = {part for part in file.parts if part.startswith("narrowpass_")}
    found = private_uses(file.read_text(encoding="utf-8"))
    assert [use for use in found if use.partition(".")[0].partition(":")[0] not in own] == []


@pytest.mark.parametrize(
    "source",
    [
        "from narrowpass_testing._feeds import random_feeds",
        "from narrowpass import _private",
        "from narrowpass_planning.weights import _private",
        "import narrowpass.ir.verify._structure",
        "import narrowpass.framework.boundary",
        "from narrowpass.framework.boundary import translate_errors",
        "from narrowpass.framework import boundary",
        "import narrowpass as n\nn._MODULE_OF",
        "def f():\n    from narrowpass._x import y",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert list(private_uses(source))


def test_public_modules_are_a_sorted_list_of_modules() -> None:
    assert list(PUBLIC_MODULES) == sorted(set(PUBLIC_MODULES))
    assert set(PUBLIC_MODULES) <= MODULES
    assert not [name for name in PUBLIC_MODULES if "._" in name]


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
    "module", ["narrowpass", "narrowpass_constant_folding", "narrowpass_hello"]
)
def test_entry_modules_import_nothing_heavy(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"onnx", "onnx_ir", "numpy", "click", "rich", "ml_dtypes", "safetensors"}
    assert heavy.isdisjoint(done.stdout.split())
