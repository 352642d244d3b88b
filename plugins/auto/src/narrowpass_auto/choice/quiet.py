"""Keeps what a C library prints out of our standard output, which may be a JSON document."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

_LOCK = threading.Lock()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what is written to the file of standard output to standard error for a while.

    HiGHS prints a line there in some solutions, whatever its options. Where standard output or
    error is closed, nothing is changed.
    """
    with _LOCK:
        saved = _redirect()
        try:
            yield
        finally:
            if saved is not None:
                _flush()
                os.dup2(saved, 1)
                os.close(saved)


def _redirect() -> int | None:
    _flush()
    try:
        saved = os.dup(1)
    except OSError:
        return None
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(saved)
        return None
    return saved


def _flush() -> None:
    """Write what Python and C have in their buffers: it belongs to the file that there is now."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)
