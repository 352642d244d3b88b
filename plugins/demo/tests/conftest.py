"""The command line with the demo, the reference backend, and passes of the tests."""

from __future__ import annotations

import importlib.metadata
import types
from dataclasses import dataclass
from typing import Any

import pytest

from narrowpass import hookimpl
from narrowpass_testing.fixtures import narrowpass_cli

__all__ = ["narrowpass_cli"]


@dataclass(frozen=True)
class Point:
    """An entry point whose module is at hand."""

    name: str
    plugin: Any
    dist: None = None
    value: str = "fake.module"

    def load(self):
        return self.plugin


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs passes, beside the demo: nothing else is visible."""
    points = [
        point
        for point in importlib.metadata.entry_points(group="narrowpass")
        if point.name in ("analysis", "demo", "reference")
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(points))

    def add(*passes):
        module = types.ModuleType("fake_plugin")
        module.narrowpass_passes = hookimpl(lambda: list(passes))
        points.append(Point("fake", module))

    return add


@pytest.fixture
def call(install, narrowpass_cli, tmp_path, monkeypatch):
    """Return a function that calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = narrowpass_cli(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run
