"""The backend that results are compared on states that it is the oracle."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from plugins_kit import REFERENCE

from narrowpass import Accept, Backend
from narrowpass.errors import PluginError
from narrowpass.runtime.oracle import oracle


def test_the_oracle_is_the_reference_backend(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(REFERENCE))
    assert oracle().name == "reference"


def test_a_missing_oracle_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    with pytest.raises(PluginError, match=r"is_oracle = True; of these: none; .*README"):
        oracle()


def test_two_oracles_are_an_error_that_names_both(monkeypatch):
    class Other(Backend):
        name = "other"
        is_oracle = True

        def supports(self, node):
            return Accept()

        def compile(self, bundle, options):
            raise AssertionError("it is looked up only")

    registry = SimpleNamespace(backends={"reference": oracle(), "other": Other()})
    plugins = SimpleNamespace(registry=registry)
    monkeypatch.setattr("narrowpass.runtime.oracle.installed_plugins", lambda: plugins)
    with pytest.raises(PluginError, match="of these: other, reference;"):
        oracle()
