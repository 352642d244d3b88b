"""Ownership checks of cache files: files that other users can write are not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def distrust_file(path: Path, status: os.stat_result) -> str:
    """Return why another user may have written a file; empty where none can.

    The superuser is trusted: that account needs no cache file to change a process.
    """
    reason = _owner(status)
    if reason:
        return f"{path} {reason}; delete it, or set another folder with cache_dir"
    if status.st_mode & _OTHERS:
        return f"{path} can be written by other users; delete it, or run: chmod go-w {path}"
    return ""


def distrust_folder(path: Path) -> str:
    """Return why other users may have written to a folder; empty where none can, or it is absent.

    Files in a folder with the sticky bit, such as /tmp, are deleted and renamed by their owners
    only: there it is enough to look at the files.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    reason = _owner(status)
    if reason:
        return f"the folder {path} {reason}; set another folder with cache_dir"
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        return f"the folder {path} can be written by other users; run: chmod go-w {path}"
    return ""


def _owner(status: os.stat_result) -> str:
    if status.st_uid in (os.geteuid(), _ROOT):
        return ""
    return f"belongs to user {status.st_uid}, who is not the one that runs this"
