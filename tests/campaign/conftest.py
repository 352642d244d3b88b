"""Where the packages of the campaigns are, and which oracle and backend they need."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
