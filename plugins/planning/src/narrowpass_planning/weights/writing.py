"""Atomic writing of files in a cache folder, and removal of temporary files of killed writers.

A file has no name while it is written, where the file system can do that (``O_TMPFILE``): a process
that is killed leaves nothing. Elsewhere, and for the moment between a name and its last one, it is
called ``.packed-….tmp``, and its writer holds a lock of it: a file of that name without a lock is
nobody's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from narrowpass_ir.files import (
    TEMPORARY,
    is_left_behind,
    open_into,
    opened_folder,
    sync,
    sync_folder,
)

_PATTERN = ".packed-*.tmp"
_MODE = 0o644  # less the umask: others never write

_UNUSED = 7 * 24 * 3600.0
"""Seconds without use after which a file of another version goes, when one takes its place."""

_UNNAMED = getattr(os, "O_TMPFILE", 0)
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Return a file to write; it replaces `path` atomically if the block ends without an error.

    Raises:
        OSError: the file system refuses.
    """
    files, names = list[int](), list[str]()
    with opened_folder(path.parent) as folder:
        try:
            _create(folder, files, names)
            with os.fdopen(files[0], "wb", closefd=False) as file:
                yield file
                sync(file)
                if not names:
                    names.append(_new_name())
                    os.link(f"/proc/self/fd/{files[0]}", names[0], dst_dir_fd=folder)
                os.rename(names[0], path.name, src_dir_fd=folder, dst_dir_fd=folder)
                names.clear()
        finally:
            try:
                if files and names:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(names[0], dir_fd=folder)
            finally:
                for descriptor in files:
                    os.close(descriptor)
    sync_folder(path.parent)


def _create(folder: int, files: list[int], names: list[str]) -> None:
    """Open a new file, locked; append it to `files` and its name, if it has one, to `names`."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    if _UNNAMED and os.path.exists("/proc/self/fd"):  # noqa: PTH110  # its name comes from there
        try:
            open_into(files, ".", flags | _UNNAMED, _MODE, dir_fd=folder)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            _lock(files[0])
            return
    while True:
        names.append(_new_name())
        open_into(files, names[0], flags | os.O_CREAT | os.O_EXCL, _MODE, dir_fd=folder)
        if _lock(files[0]) and _is_at(files[0], folder, names[0]):
            return
        names.clear()
        os.close(files.pop())  # somebody has just taken it for one of a dead process


def _new_name() -> str:
    return _PATTERN.replace("*", secrets.token_hex(8))


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, folder: int, name: str) -> bool:
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def leftovers(folder: Path) -> list[Path]:
    """Return the temporary files of killed writers in a folder."""
    # Other commands and older versions write files of that name.
    old = [path for path in folder.glob(TEMPORARY) if _is_old(path)]
    return sorted([path for path in folder.glob(_PATTERN) if _with_lock(path, _nothing)] + old)


def delete_leftovers(folder: Path) -> list[Path]:
    """Delete the temporary files of killed writers in a folder; return those deleted."""
    deleted = [path for path in folder.glob(_PATTERN) if _with_lock(path, Path.unlink)]
    for path in folder.glob(TEMPORARY):
        with contextlib.suppress(OSError):
            if _is_old(path):
                path.unlink()
                deleted.append(path)
    return deleted


def _nothing(path: Path) -> None:
    pass


def _with_lock(path: Path, action: Callable[[Path], None]) -> bool:
    """Apply an action to a file that no writer has locked; return whether it was applied."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not _lock(descriptor):
            return False
        action(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_old(path: Path) -> bool:
    try:
        return is_left_behind(path)
    except OSError:
        return False


def is_unused(used: float) -> bool:
    """Return whether a file was not used for a week.

    One of the future is in use: it was there before the clock was set back.
    """
    return time.time() - used > _UNUSED
