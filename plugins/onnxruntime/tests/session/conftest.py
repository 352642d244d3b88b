"""Puts the models of `session_kit` on the import path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "kits"))
