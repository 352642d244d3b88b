"""Atomic publishing of a folder: a reader sees the old one whole, or the new one whole.

Beside ``model.narrow`` there may be, for a while:

``.model.narrow.lock``
    held while folders change their names, and removed by who holds it;
``.model.narrow.tmp-XXXXXXXX``
    what a build writes, or an old bundle on its way out. Its ``manifest.json`` is the first
    file created and the last one deleted. The build keeps that file locked, so that nobody takes
    the folder of a live build for a leftover;
``.model.narrow.old-XXXXXXXX``
    the old bundle, moved aside where the file system cannot exchange two folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from narrowpass.bundle.manifest import MANIFEST, is_manifest
from narrowpass.errors import OutputError, UsageError
from narrowpass_ir.arguments import path_of
from narrowpass_ir.files import open_into, sync_folder

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS

MARKER = MANIFEST
"""The file of such a folder that is created first, locked, and deleted last."""

TEMPORARY = "tmp"
ASIDE = "old"


_ADVICE = {
    errno.ENOSPC: "free space on that disk, or write to another",
    errno.EDQUOT: "your quota on that disk is used up: free space, or write to another",
    errno.EFBIG: "a limit on the size of files is in force: raise it (ulimit -f)",
    errno.EROFS: "write to a folder that is not read-only",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "write to a folder that you may write to"),
}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder to write a bundle into; it takes the place of `path` where the block ends.

    Where the block raises, the folder is deleted and what was at `path` stays. The files that
    the block writes must be synced (`write_file` does); the folders are synced here. The block
    must write ``manifest.json`` into the file that is there, not replace that file.

    Args:
        path: absent, an empty folder, or a folder with our manifest. Links are followed.

    Raises:
        UsageError: something else is at `path`, or the folder around it does not exist.
        OutputError: the file system refuses to write.
    """
    target = _resolve(path)
    try:
        with contextlib.ExitStack() as stack:
            with locked(target):
                _repair(target)
                _check_replaceable(target, path)
                remove_leftovers(target)
                folder = stack.enter_context(temporary(target))
            yield folder
            for inner in filter(Path.is_dir, folder.rglob("*")):
                sync_folder(inner)
            sync_folder(folder)
            with locked(target):
                _repair(target)
                _check_replaceable(target, path)
                _replace_target(folder, target)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "write to another place")
        raise OutputError(
            f"{os.fspath(path)}: cannot be written: {error.strerror or error}; {advice}. "
            "What was there before is as it was"
        ) from error


def repair(path: str | os.PathLike[str]) -> bool:
    """Bring back a bundle that a killed build had moved aside.

    Returns:
        Whether it is worth opening `path` again.
    """
    target = Path(os.path.realpath(path))
    try:
        if not target.parent.is_dir() or not list_siblings(target, ASIDE):
            return False
        with locked(target):
            _repair(target)
    except OSError:
        return False
    return target.is_dir()


def _repair(target: Path) -> None:
    if os.path.lexists(target):
        return
    for folder in list_siblings(target, ASIDE):
        if _is_bundle(folder):
            folder.rename(target)
            sync_folder(target.parent)
            return


def _resolve(path: str | os.PathLike[str]) -> Path:
    shown = path_of(path, "the path of the bundle")
    if not shown:
        raise UsageError("the path of the bundle is empty; pass the folder to write")
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:
        raise UsageError(f"{shown!r} is not a path: {error}") from error
    if not target.name:
        raise UsageError(f"{shown}: is the root folder; choose another folder to write")
    if not os.path.isdir(target.parent):  # noqa: PTH112  # pathlib's raises where the disk fails
        raise UsageError(f"{shown}: the folder {target.parent} does not exist; create it first")
    return target


def _check_replaceable(target: Path, path: str | os.PathLike[str]) -> None:
    shown = os.fspath(path)
    if os.path.lexists(target) and not target.is_dir():
        raise UsageError(f"{shown}: exists and is not a folder; choose another path for the bundle")
    if target.is_dir() and any(target.iterdir()) and not _is_bundle(target):
        raise UsageError(
            f"{shown}: this folder is not a bundle and is not empty, so it is not replaced; "
            "choose another path, or delete it yourself"
        )


def _is_bundle(folder: Path) -> bool:
    try:
        return is_manifest((folder / MANIFEST).read_bytes())
    except OSError:
        return False


def _replace_target(folder: Path, target: Path) -> None:
    """Put `folder` where `target` is. Call it with the lock held."""
    old = None
    if not target.is_dir() or not any(target.iterdir()):
        folder.rename(target)
    else:
        exchanged = exchange(folder, target)
        old = folder if exchanged else _replace_in_two_steps(folder, target)
    # The new names must be durable before the old files go.
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise OutputError(
            f"{target}: was written, but the disk does not confirm it: {error.strerror}; "
            "check the disk"
        ) from error
    if old is not None:
        remove(old)


def _replace_in_two_steps(folder: Path, target: Path) -> Path:
    """Put `folder` where `target` is, in two steps; between them only `repair` helps."""
    old = fresh_name(target, ASIDE)
    target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if not os.path.lexists(target):  # an interrupt may come after the rename
            old.rename(target)
        raise
    return old


def list_siblings(target: Path, kind: str) -> list[Path]:
    """Return the folders of one kind beside `target`, in the order of their names."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{kind}-[0-9a-f]{{8}}")
    with os.scandir(target.parent) as entries:
        found = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    return [target.parent / name for name in sorted(found)]


def fresh_name(target: Path, kind: str) -> Path:
    """Return a name beside `target` that nothing has yet."""
    while True:
        path = target.parent / f".{target.name}.{kind}-{secrets.token_hex(4)}"
        if not os.path.lexists(path):
            return path


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock on the names beside `target`; no lock file stays behind.

    Removing a lock file is safe only in this order: its holder unlinks it, then releases it; and
    who gets the lock looks whether the file still has its name, and begins anew if not.
    """
    path = target.parent / f".{target.name}.lock"
    name, held, acquired = str(path), list[int](), False
    try:
        _acquire(path, held)
        acquired = True
        yield
    finally:
        try:
            # An interrupt may have come before the lock: then it is not waited for.
            if acquired or (held and _lock(held[0], path, fcntl.LOCK_NB)):
                os.unlink(name)  # noqa: PTH108  # one step for signal handlers, as `open_into`
        except OSError:
            pass
        finally:
            for fd in held:
                os.close(fd)


def _acquire(path: Path, held: list[int]) -> None:
    while True:
        open_into(held, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW)
        if _lock(held[0], path):
            return
        os.close(held.pop())


def _lock(fd: int, path: Path, how: int = 0) -> bool:
    """Lock a file; return whether it still has its name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | how)
    except OSError as error:
        # Without locks nothing is mixed either, since the exchange is one step; only the
        # leftovers of killed builds stay.
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
            raise
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """Create a folder to build in, and keep it alive. Enter it with the lock held.

    It is deleted where the block raises.
    """
    folder, held = fresh_name(target, TEMPORARY), list[int]()
    try:
        folder.mkdir()
        open_into(held, folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        # A file system without locks: then no build can find out whether this one is alive, and
        # `remove_leftovers` leaves it alone.
        with contextlib.suppress(OSError):
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BaseException as error:
        if held or not isinstance(error, FileExistsError):  # that folder is another build's
            remove(folder)
        raise
    finally:
        for fd in held:
            os.close(fd)


def remove_leftovers(target: Path) -> None:
    """Remove what killed builds left beside `target`. Call it with the lock held."""
    for folder in list_siblings(target, ASIDE):
        remove(folder)
    for folder in list_siblings(target, TEMPORARY):
        if not _is_locked(folder):
            remove(folder)


def _is_locked(folder: Path) -> bool:
    try:
        fd = os.open(folder / MARKER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Half created or half deleted, and empty then; a folder of any other origin stays.
        return any(folder.iterdir()) if folder.is_dir() else True
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def remove(folder: Path) -> None:
    """Delete a folder as far as that is possible, its manifest last.

    What cannot be deleted stays for a later `remove_leftovers`, since what a build has published
    must not be reported as failed.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if path.name == MARKER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        (folder / MARKER).unlink(missing_ok=True)
        folder.rmdir()


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step.

    Returns:
        False where the system or the file system cannot.

    Raises:
        OSError: it can, but refuses these two.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(one, two, ctypes.c_uint(_EXCHANGE))
    elif sys.platform == "linux" and hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, one, _AT_FDCWD, two, ctypes.c_uint(_EXCHANGE))
    else:
        return False
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), os.fspath(second))
