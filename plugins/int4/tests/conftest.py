"""Lets the tests of this folder import the kits and repeat their numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def fresh_numbers(monkeypatch):
    """Let each test draw the same numbers, whichever tests ran before it."""
    import int4_kit

    monkeypatch.setattr(int4_kit, "RNG", np.random.default_rng(4))
