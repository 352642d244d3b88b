"""Lets the tests of this folder import their kit, and the decoders of the tests of generation."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "generate" / "tests"))
