"""Where the kit of these tests is, and a cache folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def warned(monkeypatch):
    """Let a test receive the warnings that a process emits once."""
    from narrowpass_planning.weights import folder

    monkeypatch.setattr(folder, "_warned", set())
