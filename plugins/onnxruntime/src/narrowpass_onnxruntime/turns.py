"""One process builds what several want at once; the others wait for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""How the name of a lock ends, beside the name of what is built."""

_PATIENCE = 600.0
"""Seconds after which a process that waits builds for itself: to choose types takes minutes."""

_log = logging.getLogger("narrowpass.onnxruntime")


@contextlib.contextmanager
def turn(path: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the turn to build the file or folder at `path`, which others may want to build, too.

    Who comes second waits, and should look for the result first. The lock is one of the system: a
    process that ends, however it does, loses its turn. After `patience` seconds whoever waits goes
    on, with a warning: then two build the same, and each writes it in one step.

    Args:
        path: of what is built; its folder exists.
        patience: in seconds.

    Raises:
        OSError: the file of the lock, which is beside `path` and stays, cannot be written.
    """
    lock = FileLock(f"{path}{LOCK}", timeout=patience)
    try:
        lock.acquire()
    except Timeout:
        _log.warning(
            "%s: another process has been building it for %g s; it is built here, too",
            path,
            patience,
        )
    try:
        yield
    finally:
        lock.release()
