"""Plugins created by the tests: entry points without installed distributions."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import pytest
from plugins_kit import REFERENCE

from narrowpass import Pass, PassResult, hookimpl, load_plugins


@dataclass
class FakeDistribution:
    name: str
    version: str = "1.0"
    requires: list[str] = field(default_factory=list)


@dataclass
class FakeEntryPoint:
    """What importlib.metadata returns for a plugin, with the module at hand or an error."""

    name: str
    plugin: Any
    dist: Any
    value: str = "fake.module"

    def load(self) -> Any:
        if isinstance(self.plugin, BaseException):
            raise self.plugin
        return self.plugin


def plugin_module(**hooks):
    """A module whose attributes are hook implementations that return the values listed."""
    module = types.ModuleType("fake_plugin")
    for name, value in hooks.items():

        def implementation(value=value):
            if isinstance(value, BaseException):
                raise value
            return value

        # pluggy passes what the specification names: the default argument must not look like one.
        hook = types.FunctionType(
            implementation.__code__, globals(), name, implementation.__defaults__
        )
        setattr(module, name, hookimpl(hook))
    return module


@pytest.fixture
def entry_point():
    def create(name, plugin=None, dist=None, requires=(), version="1.0", **hooks):
        distribution = FakeDistribution(dist or f"dist-{name}", version, list(requires))
        return FakeEntryPoint(name, plugin or plugin_module(**hooks), distribution)

    return create


@pytest.fixture
def registry_of(entry_point):
    """A registry with the given passes (and other hooks' results), from one fake plugin."""

    def create(*passes, **hooks):
        point = entry_point("fake", narrowpass_passes=list(passes), **hooks)
        return load_plugins(entry_points=[point, *REFERENCE]).registry

    return create


@dataclass(frozen=True)
class Touch(Pass):
    """Writes its label into the graph's doc string; says that it did."""

    name = "touch"
    label: str = "touched"

    def run(self, model, ctx):
        model.graph.doc_string = f"{model.graph.doc_string or ''}{self.label};"
        ctx.counters["touched"] += 1
        return PassResult(model, modified=True)


@pytest.fixture
def touch():
    return Touch
