"""Atomic publishing of a folder: a reader sees the old one whole, or the new one whole."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from narrowpass.bundle.manifest import MANIFEST, is_manifest
from narrowpass.errors import OutputError, UsageError
from narrowpass_ir import siblings
from narrowpass_ir.arguments import path_of
from narrowpass_ir.files import sync_folder

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
            with siblings.locked(target):
                _repair(target)
                _check_replaceable(target, path)
                siblings.remove_leftovers(target)
                folder = stack.enter_context(siblings.temporary(target))
            yield folder
            for inner in filter(Path.is_dir, folder.rglob("*")):
                sync_folder(inner)
            sync_folder(folder)
            with siblings.locked(target):
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
        if not target.parent.is_dir() or not siblings.list_siblings(target, siblings.ASIDE):
            return False
        with siblings.locked(target):
            _repair(target)
    except OSError:
        return False
    return target.is_dir()


def _repair(target: Path) -> None:
    if os.path.lexists(target):
        return
    for folder in siblings.list_siblings(target, siblings.ASIDE):
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
        exchanged = siblings.exchange(folder, target)
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
        siblings.remove(old)


def _replace_in_two_steps(folder: Path, target: Path) -> Path:
    """Put `folder` where `target` is, in two steps; between them only `repair` helps."""
    old = siblings.fresh_name(target, siblings.ASIDE)
    target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if not os.path.lexists(target):  # an interrupt may come after the rename
            old.rename(target)
        raise
    return old
