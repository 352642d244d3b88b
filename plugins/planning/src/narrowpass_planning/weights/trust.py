"""Who may have written a file: what others can write is not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def distrust_file(path: Path, status: os.stat_result) -> str:
    """Return why a file may hold what somebody else wrote; empty where nobody else can.

    The superuser counts as nobody else: who has that right needs no file.
    """
    reason = _owner(status)
    if reason:
        return f"{path} {reason}; delete it, or give another place with cache_dir"
    if status.st_mode & _OTHERS:
        return f"{path} can be written by other users; delete it, or run: chmod go-w {path}"
    return ""


def distrust_folder(path: Path) -> str:
    """Return why others may have put files into a folder; empty where they cannot, or it is absent.

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
        return f"the folder {path} {reason}; give another place with cache_dir"
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        return f"the folder {path} can be written by other users; run: chmod go-w {path}"
    return ""


def _owner(status: os.stat_result) -> str:
    if status.st_uid in (os.geteuid(), _ROOT):
        return ""
    return f"belongs to user {status.st_uid}, who is not the one that runs this"
