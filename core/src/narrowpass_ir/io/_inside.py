"""Which files belong to a folder that somebody else has packed, and opening them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def belongs(real: Path, folder: Path) -> bool:
    """Return whether a file is in a folder, or in the blobs of the hub's repository around it.

    A hub's cache has ``REPOSITORY/snapshots/REVISION``, with links to ``REPOSITORY/blobs/HASH``.

    Args:
        real: of the file, without links.
        folder: without links.
    """
    if real.is_relative_to(folder):
        return True
    hubs = (above.parent for above in folder.parents if above.name == "snapshots")
    return any(real.parent == hub / "blobs" for hub in hubs)


def open_inside(folder: int, path: str, name: str) -> int:
    """Open a file of a folder for reading; links must not leave it. See `belongs`.

    A file that is no link is opened by the descriptor of the folder alone: one that takes the
    folder's place meanwhile is not looked at.

    Args:
        folder: its descriptor.
        path: of the folder.
        name: of the file, or of one in a folder of it.

    Raises:
        FileNotFoundError: it is not there; `filename` is `name`.
        OSError: it cannot be opened, or is a link that leaves the folder.
    """
    try:
        try:
            return _open_unfollowed(folder, name)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
                raise
        real = os.path.realpath(f"{path}/{name}", strict=True)
        if not belongs(Path(real), Path(path).resolve()):
            # As openat2 has it with RESOLVE_BENEATH.
            text = f"it is a link that leaves the folder, to {real}; put the file itself there"
            raise OSError(errno.EXDEV, text)
        return os.open(real, _FLAGS | os.O_NONBLOCK)
    except FileNotFoundError as error:
        error.filename = name  # and not a part of it, or what it links to
        raise


def _open_unfollowed(folder: int, name: str) -> int:
    # Without O_NONBLOCK a FIFO would hang here.
    head, _, last = name.rpartition("/")
    if not head:
        return os.open(last, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
    inner = os.open(head, _FLAGS | os.O_DIRECTORY, dir_fd=folder)
    try:
        return os.open(last, _FLAGS | os.O_NONBLOCK, dir_fd=inner)
    finally:
        os.close(inner)
