"""Plugins created by the tests: entry points without installed distributions."""

from __future__ import annotations

from dataclasses import dataclass

import plugins_kit
import pytest

from narrowpass import Pass, PassResult, load_plugins


@pytest.fixture
def entry_point():
    return plugins_kit.entry_point


@pytest.fixture
def registry_of(entry_point):
    """A registry with the given passes (and other hooks' results), from one fake plugin."""

    def create(*passes, **hooks):
        point = entry_point("fake", narrowpass_passes=list(passes), **hooks)
        return load_plugins(entry_points=[point, *plugins_kit.REFERENCE]).registry

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
