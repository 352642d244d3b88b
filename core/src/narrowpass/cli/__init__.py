"""The command line: ``narrowpass COMMAND``.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 the
model or the data is at fault, 2 the call is at fault, 130 interrupted.
"""

from __future__ import annotations

from narrowpass.cli._app import app, main

__all__ = ["app", "main"]
