"""The core names no plugin: a data file does, and it says what the plugins register."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "core" / "src").rglob("*.py"))
PROVIDERS = json.loads(
    (ROOT / "core" / "src" / "narrowpass" / "data" / "providers.json").read_text(encoding="utf-8")
)
PLUGINS = {
    distribution.removeprefix("narrowpass-")
    for kind, names in PROVIDERS.items()
    if kind != "extras"
    for distribution in names.values()
}
OTHER_MEANINGS = {
    ("cli/output.py", "fold"),  # how rich wraps text
    ("narrowing.py", "int4"),  # the type, which the pass is named after
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "providers.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def test_the_file_is_what_the_plugins_register(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the sources of those that are not installed
    monkeypatch.delenv("NARROWPASS_DISABLE_PLUGINS", raising=False)
    assert tool.FILE.read_text(encoding="utf-8") == tool.document()


def test_the_file_has_each_extra() -> None:
    extras = {extra for names in PROVIDERS["extras"].values() for extra in names}
    assert extras == {"all", "cpu", "llm", "onnxruntime", "ray", "serve", "signing"}


def names_of_plugins(text: str) -> Iterator[str]:
    """Yield the names of distributions and packages of plugins, and of passes and backends.

    Those of passes and backends are words of the language: only what is quoted counts, such as a
    pipeline's text.
    """
    plugins = "|".join(name.replace("-", "[-_]") for name in sorted(PLUGINS))
    yield from re.findall(rf"\bnarrowpass[-_](?:{plugins})\b", text)
    things = "|".join(map(re.escape, {*PROVIDERS["passes"], *PROVIDERS["backends"]}))
    quoted = rf"[`'\"](?:[\w-]+,)*({things})(?:[{{,][^`'\"]*)?[`'\"]"
    yield from re.findall(quoted, text)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_of_the_core_names_a_plugin(file: Path) -> None:
    found = set(names_of_plugins(file.read_text(encoding="utf-8")))
    where = file.relative_to(ROOT / "core" / "src").as_posix().removeprefix("narrowpass/")
    assert {name for name in found if (where, name) not in OTHER_MEANINGS} == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("run: pip install narrowpass-int8-sym", ["narrowpass-int8-sym"]),
        ("import narrowpass_xnn_cpu.native", ["narrowpass_xnn_cpu"]),
        ("pass text such as 'fold,fp16'", ["fp16"]),
        ('f"auto{{max-error={limit}}}"', ["auto"]),
        ("`reference` runs it", ["reference"]),
        ("narrowpass_reports, and runs of the reference", []),
    ],
)
def test_names_of_plugins_are_found(text: str, names: list[str]) -> None:
    assert list(names_of_plugins(text)) == names
