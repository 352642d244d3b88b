"""Pictures and README's table equal what their tools produce from the source and the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "tools")):
            del sys.modules[name]


def test_the_picture_of_the_folders_follows_from_imports():
    import rooms

    assert rooms.FILE.read_text("utf-8") == rooms.draw(), "run python tools/rooms.py"


def test_no_module_imports_itself_through_others():
    """Imports inside functions, and those for types, count too."""
    import rooms

    assert rooms.in_cycles(rooms.imports()) == []
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a"}}
    assert rooms.in_cycles(edges) == ["b", "c"]


def test_every_package_has_a_room():
    import rooms

    packages = {module.partition(".")[0] for module in rooms.modules()}
    assert packages == {room.package.partition(".")[0] for room in rooms.ROOMS}


def test_the_picture_of_the_pipeline_is_current():
    import pipeline_picture

    text = pipeline_picture.FILE.read_text("utf-8")
    assert text == pipeline_picture.draw(), "run python tools/pipeline_picture.py"


def test_the_picture_of_run_times_has_the_figures_of_the_comparison():
    import speed_picture

    text = speed_picture.PAGE.read_text("utf-8")
    assert speed_picture.FILE.read_text("utf-8") == speed_picture.draw(text), (
        "run python tools/speed_picture.py"
    )
    models = speed_picture.bars(text)
    assert len(models) >= 7
    assert all([strong for *_, strong in rows] == [False, True] * 2 for _, rows in models)


def test_readme_has_the_figures_of_the_comparison():
    import readme_table

    readme = readme_table.README.read_text("utf-8")
    table = readme_table.table(readme_table.PAGE.read_text("utf-8"))
    assert table.count("\n") >= 9
    assert readme == readme_table.with_table(readme, table), "run python tools/readme_table.py"


@pytest.mark.parametrize("name", ["pipeline.svg", "rooms.svg", "speed.svg"])
def test_pictures_are_well_formed(name):
    root = ElementTree.fromstring((ROOT / "docs" / "images" / name).read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label")
