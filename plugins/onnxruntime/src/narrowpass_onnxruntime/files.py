"""How a file is recognized without reading it."""

from __future__ import annotations

import os
from pathlib import Path


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
