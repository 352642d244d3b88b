"""Puts the kits on the path, and seeds the random numbers of each test."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER / "ported"), str(FOLDER / "corpus")]


@pytest.fixture(autouse=True)
def reseed(monkeypatch):
    """Seed the generator of `fp16_kit` before each test."""
    import fp16_kit

    monkeypatch.setattr(fp16_kit, "RNG", np.random.default_rng(33))
