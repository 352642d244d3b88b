"""Keeps what a C library prints out of our standard output, which may be a JSON document."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_LOCK = threading.Lock()
_SOLVER = b"Highs"


@contextlib.contextmanager
def without_solver_lines() -> Iterator[None]:
    """Keep the solver's own lines off standard output for a while.

    HiGHS prints a line there in some solutions, whatever its options. What else is written to the
    file of standard output meanwhile, by other threads, goes to standard error afterwards. Where
    standard output is closed, nothing is changed.
    """
    with _LOCK, tempfile.TemporaryFile() as held:
        saved = _redirect(held.fileno())
        try:
            yield
        finally:
            if saved is not None:
                _flush()
                os.dup2(saved, 1)
                os.close(saved)
                held.seek(0)
                others = [line for line in held if not line.startswith(_SOLVER)]
                with contextlib.suppress(OSError):  # standard error is closed
                    os.write(2, b"".join(others))


def _redirect(target: int) -> int | None:
    """Let standard output be another file, and return a descriptor of what it was."""
    _flush()
    try:
        saved = os.dup(1)
    except OSError:
        return None
    os.dup2(target, 1)
    return saved


def _flush() -> None:
    """Write what Python and C have in their buffers: it belongs to the file that there is now."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)
