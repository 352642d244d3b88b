"""Files that several processes share: whether one has changed, and whose turn it is to build it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


def status_of(path: Path) -> str:
    """Return what changes when a file does: device, inode, size and times; empty for no file."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return (
        f"file {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} "
        f"{found.st_ctime_ns} {os.path.realpath(path)}"
    )


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
