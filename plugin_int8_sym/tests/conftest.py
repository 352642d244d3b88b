"""Puts the kits on the import path, and keeps random numbers and caches apart between tests."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).with_name("kits")))


@pytest.fixture(autouse=True)
def fresh_numbers(monkeypatch):
    """Let each test draw the same numbers, whichever tests ran before it."""
    import int8_kit
    import repair_kit

    monkeypatch.setattr(int8_kit, "RNG", np.random.default_rng(77))
    monkeypatch.setattr(repair_kit, "RNG", np.random.default_rng(61))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Keep ranges out of the user's cache directory, and each test's to itself."""
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
