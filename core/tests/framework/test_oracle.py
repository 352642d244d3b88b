"""The backend that results are compared on is asked for by its name."""

from __future__ import annotations

import importlib.metadata

import pytest
from plugins_kit import REFERENCE

from narrowpass.errors import PluginError
from narrowpass.runtime.oracle import oracle


def test_the_oracle_is_the_reference_backend(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(REFERENCE))
    assert oracle().name == "reference"


def test_a_missing_oracle_is_named_with_its_distribution(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    with pytest.raises(PluginError, match=r"no backend 'reference' .*narrowpass-reference"):
        oracle()
