"""Writing files so that a reader finds the old one whole or the new one whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from narrowpass_ir.arguments import path_of
from narrowpass_ir.errors import OutputError, UsageError

TEMPORARY = ".narrowpass-*.tmp"
"""The names of files that are being written."""

_LEFT_BEHIND = 3600.0
"""Seconds after which such a file without a lock is taken for one of a dead process."""


def create_folder(path: Path) -> None:
    """Create a folder, and those above it, where they are missing.

    Raises:
        OutputError: something else is there, or the file system refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: the folder cannot be created: {error.strerror}; choose another place"
        ) from error


@contextlib.contextmanager
def replacing_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file to write; it takes the place of `path` where the block ends.

    Where the block raises, it is deleted and what was at `path` stays.

    Args:
        path: of the file.
        mode: who may read and write it, less the umask.

    Raises:
        UsageError: `path` is a folder or a device, or the folder around it does not exist.
        OutputError: the file system refuses to write.
    """
    if os.path.isdir(path):  # noqa: PTH112  # pathlib's raises where a name is too long
        raise UsageError(f"{path}: is a folder; pass the name of a file to write")
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        raise UsageError(f"{path}: is not a regular file; pass the name of a file to write")
    if not os.path.isdir(path.parent):  # noqa: PTH112
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it first")
    try:
        with temporary(path, mode) as (file, name):
            yield file
            sync(file)
            name.replace(path)
            sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written: {reason}; free space there, or choose another place"
        ) from error


@contextlib.contextmanager
def temporary(target: Path, mode: int = 0o666) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new file beside `target`; it is deleted at the end unless it was renamed.

    It is locked meanwhile, where the file system can do that: see `is_left_behind`.

    Yields:
        The file, open for writing, and its path.
    """
    name = target.parent / TEMPORARY.replace("*", secrets.token_hex(8))
    held: list[int] = []
    try:
        # Not tempfile: its files are for the owner only, whatever the umask says.
        open_into(held, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(held[0], "wb", closefd=False) as file:
            with contextlib.suppress(OSError):
                fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file, name
    finally:
        try:
            if held:
                name.unlink(missing_ok=True)
        finally:
            for fd in held:
                os.close(fd)


def open_into(
    held: list[int],
    path: str | Path,
    flags: int,
    mode: int = 0o666,
    *,
    dir_fd: int | None = None,
) -> None:
    """Open a file, as `os.open` does, and append its descriptor to `held`.

    One step for signal handlers, which Python runs between its instructions: the exception of one
    finds either no file or a descriptor that its owner knows.
    """
    opened = functools.partial(os.open, dir_fd=dir_fd)
    held.extend(map(opened, (path,), (flags,), (mode,)))


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder; yield its descriptor, which is closed at the end."""
    held: list[int] = []
    try:
        open_into(held, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        yield held[0]
    finally:
        for fd in held:
            os.close(fd)


def is_left_behind(path: Path) -> bool:
    """Return whether a file of `temporary` is that of a dead process.

    Nobody holds its lock, and it is an hour old, or, where the clock was set back, of the future. A
    file system without locks has the age alone.

    Raises:
        OSError: it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        age = time.time() - os.fstat(fd).st_mtime
        if abs(age) <= _LEFT_BEHIND:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age > 0
    finally:
        os.close(fd)
    return True


def sync(file: BinaryIO) -> None:
    """Put what was written on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the file system can."""
    with opened_folder(folder) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file and put it on the disk."""
    with path.open("wb") as file:
        file.write(data)
        sync(file)


def check_not_source(out: str | os.PathLike[str], sources: Iterable[object]) -> None:
    """Refuse to write the result over what it is built from.

    Raises:
        UsageError: `out` is one of the files that are read.
    """
    for source in sources:
        # Not pathlib's `exists`: a name that is too long is no reason to raise here.
        if not isinstance(source, (str, os.PathLike)) or not os.path.exists(out):  # noqa: PTH110
            continue
        if os.path.exists(source) and Path(source).samefile(out):  # noqa: PTH110
            what = "the model" if os.fspath(source).endswith(".onnx") else "a file"
            raise UsageError(
                f"{os.fspath(out)}: is {what} that is read, and is not overwritten; choose "
                "another name"
            )


def check_result_file(path: str, option: str, sources: Iterable[str]) -> None:
    """Refuse to write a file of results over what is read, early: long work must not end in that.

    Raises:
        UsageError: the name is empty, or `path` is one of the sources, or in a bundle that is one.
    """
    path_of(path, option)
    if not path:
        raise UsageError(f"{option}: the name is empty; pass the name of a file to write")
    sources = tuple(sources)
    check_not_source(path, sources)
    real = Path(os.path.realpath(path))
    for source in sources:
        # Not pathlib's `is_dir`, either.
        if os.path.isdir(source) and real.is_relative_to(os.path.realpath(source)):  # noqa: PTH112
            raise UsageError(
                f"{option} {path}: is inside {source}, which is read, and is not written to; "
                "choose another place"
            )
