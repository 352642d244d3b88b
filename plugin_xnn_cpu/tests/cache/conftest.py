"""Fixtures of stored methods; the helpers beside this file can be imported."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

import narrowpass
from narrowpass_planning.program import compiled_graph, method

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def public():
    """Return a folder that every user may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a bundle of models, with its cache in a folder of the test."""

    def load(backend="xnn-cpu", **options):
        chosen = {"threads": 1, "cache_dir": tmp_path / "cache", **options}
        return narrowpass.load(tmp_path / "b.narrow", backend, **chosen)

    return load


@pytest.fixture
def network_path(tmp_path):
    """Return the path of a stored bundle of a small network."""
    from cache_kit import network
    from stored_kit import save

    return save(tmp_path, main=network())


@pytest.fixture
def planned(monkeypatch):
    """Return the names of the methods that are compiled from now on, and not restored."""
    found: list[str] = []
    compile_graph = compiled_graph.compile_graph

    def noted(name, *given):
        found.append(name)
        return compile_graph(name, *given)

    monkeypatch.setattr(method, "compile_graph", noted)
    return found
