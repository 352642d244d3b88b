"""How tools start pytest: one worker for each processor, which take over tests of others."""

from __future__ import annotations

import sys

_WORKERS = ("-n", "auto", "--dist", "worksteal")
COMMAND = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_WORKERS)
