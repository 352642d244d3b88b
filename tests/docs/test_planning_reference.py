"""The public names of narrowpass-planning are on their page, and have docstrings."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("narrowpass_planning")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planning.md"
PACKAGES = ("graph", "memory", "partitioner", "plan", "program", "stored", "weights")
_CURRENT = re.compile(r"^\.\. currentmodule:: (narrowpass_planning\.\w+)$", re.MULTILINE)
_NAME = re.compile(r"^\.\. auto(?:class|function|data):: (\w+)$", re.MULTILINE)


def described():
    """Return the names on the page by package."""
    found = {}
    parts = _CURRENT.split(PAGE.read_text("utf-8"))[1:]
    for package, text in zip(parts[::2], parts[1::2], strict=True):
        found.setdefault(package, set()).update(_NAME.findall(text))
    return found


def test_the_page_names_what_is_public():
    modules = {f"narrowpass_planning.{name}" for name in PACKAGES}
    public = {name: set(importlib.import_module(name).__all__) for name in modules}
    assert described() == public


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_docstrings(package):
    loaded = importlib.import_module(f"narrowpass_planning.{package}")
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if not inspect.isclass(value) and not inspect.isroutine(value):
            continue
        assert inspect.getdoc(value), name
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            # The default of a dataclass's field is no method.
            if inspect.isfunction(function) and function.__name__ == member and member[0] != "_":
                assert inspect.getdoc(function), f"{name}.{member}"
