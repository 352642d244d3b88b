"""Plugins that tests load in place of all that are installed, and plugins that tests write."""

from __future__ import annotations

import importlib.metadata
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from narrowpass import hookimpl

REFERENCE = tuple(importlib.metadata.entry_points(group="narrowpass", name="reference"))
"""The entry point of the reference backend, which models are run and compared on."""

ANALYSIS = tuple(importlib.metadata.entry_points(group="narrowpass", name="analysis"))
"""The entry point of the commands that compare and measure."""


@dataclass
class FakeDistribution:
    """What importlib.metadata says of a distribution."""

    name: str
    version: str = "1.0"
    requires: tuple[str, ...] = ()


@dataclass
class FakeEntryPoint:
    """What importlib.metadata returns for a plugin, with the module at hand or an error."""

    name: str
    plugin: Any
    dist: FakeDistribution
    value: str = "fake.module"

    def load(self) -> Any:
        if isinstance(self.plugin, BaseException):
            raise self.plugin
        return self.plugin


def entry_point(
    name: str,
    plugin: Any = None,
    dist: str | None = None,
    requires: tuple[str, ...] = (),
    version: str = "1.0",
    **hooks: Any,
) -> FakeEntryPoint:
    """Return the entry point of a plugin, which has these hooks unless `plugin` is given."""
    distribution = FakeDistribution(dist or f"dist-{name}", version, tuple(requires))
    return FakeEntryPoint(name, plugin or plugin_module(**hooks), distribution)


def plugin_module(**hooks: Any) -> types.ModuleType:
    """Return a module of hook implementations, which return or raise the values given."""
    module = types.ModuleType("fake_plugin")
    for name, value in hooks.items():

        def implementation(value: Any = value) -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        # pluggy passes what the specification names: the default argument must not look like one.
        hook = types.FunctionType(
            implementation.__code__, globals(), name, implementation.__defaults__
        )
        setattr(module, name, hookimpl(hook))
    return module


def show_plugins(monkeypatch: pytest.MonkeyPatch, points: tuple[Any, ...]) -> Callable[..., None]:
    """Hide all plugins but these; return a function that installs another one, from hooks."""
    shown = list(points)
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: list(shown) if group == "narrowpass" else [],
    )

    def add(name: str = "fake", plugin: Any = None, **hooks: Any) -> None:
        shown.append(entry_point(name, plugin, **hooks))

    return add
