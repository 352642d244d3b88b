"""Puts the kits and the counterexamples on the path."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER / "counterexamples")]
