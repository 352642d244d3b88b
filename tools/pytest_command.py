"""How tools start the tests of narrowpass-xnn-cpu: a worker for each processor."""

from __future__ import annotations

import sys
from pathlib import Path

_WORKERS = ("-n", "auto", "--dist", "worksteal")  # workers take over tests of others
COMMAND = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_WORKERS)

TESTS = Path(__file__).resolve().parent.parent / "plugin_xnn_cpu" / "tests"
_FOLDERS = ("attention", "conv", "gemm", "int8", "kernels", "quantized", "recurrent")
KERNELS = tuple(TESTS / folder for folder in _FOLDERS)
"""Where the tests of kernels are; others are of what decides which kernel runs, and when."""
