"""The command line with the demo, the reference backend, and passes of the tests."""

from __future__ import annotations

import importlib.metadata

import pytest
from plugins_kit import show_plugins

from narrowpass_testing.fixtures import narrowpass_cli

__all__ = ["narrowpass_cli"]


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs passes, beside the demo: nothing else is visible."""
    points = importlib.metadata.entry_points(group="narrowpass")
    shown = tuple(point for point in points if point.name in ("analysis", "demo", "reference"))
    add = show_plugins(monkeypatch, shown)
    return lambda *passes: add(narrowpass_passes=list(passes))


@pytest.fixture
def call(install, narrowpass_cli, tmp_path, monkeypatch):
    """Return a function that calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = narrowpass_cli(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run
