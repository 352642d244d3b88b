"""Ownership checks of cache files: files that other users can write are not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
_ELSEWHERE = "set another folder with cache_dir or NARROWPASS_CACHE_DIR"


def distrust_file(path: Path, status: os.stat_result) -> str:
    """Return why another user may have written a file; empty where none can.

    The superuser is trusted: that account needs no cache file to change a process.
    """
    reason = _owner(status)
    if reason:
        return f"{path} {reason}; delete it, or {_ELSEWHERE}"
    if status.st_mode & _OTHERS:
        return f"{path} can be written by other users; delete it, or run: chmod go-w {path}"
    return ""


def distrust_folder(path: Path, *, sticky: bool = True) -> str:
    """Return why other users may have written to a folder; empty where none can, or it is absent.

    Files in a folder with the sticky bit, such as /tmp, are deleted and renamed by their owners
    only: there it is enough to look at the files.

    Args:
        path: of the folder.
        sticky: whether the sticky bit is enough. It is not where files are opened by their names
            after they were looked at.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    reason = _owner(status)
    if reason:
        return f"the folder {path} {reason}; {_ELSEWHERE}"
    if status.st_mode & _OTHERS and not (sticky and status.st_mode & stat.S_ISVTX):
        return f"the folder {path} can be written by other users; run: chmod go-w {path}"
    return ""


def create_own_folder(path: Path) -> None:
    """Create a folder, and those above it, so that only their owner may write, whatever the umask.

    Those that are there stay as they are.

    Raises:
        OSError: the file system refuses.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(0o755, exist_ok=True)


def _owner(status: os.stat_result) -> str:
    if status.st_uid in (os.geteuid(), _ROOT):
        return ""
    return f"belongs to user {status.st_uid}, who is not the one that runs this"
