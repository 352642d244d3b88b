"""Makes `fp16_kit` importable by the tests of this folder, and its numbers repeatable."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def fresh_numbers(monkeypatch):
    """Let each test draw the same numbers, whichever tests ran before it."""
    import fp16_kit

    monkeypatch.setattr(fp16_kit, "RNG", np.random.default_rng(33))
