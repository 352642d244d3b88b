"""Ways in which the file of a cache, or its folder, may be another user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def other_owner(path: Path) -> None:
    """Give a file or a folder to another user."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser can change the owner of a file")
    os.chown(path, 12345, 12345)


def linked(path: Path) -> None:
    """Put a link in the place of a file."""
    path.rename(path.with_name("other"))
    path.symlink_to("other")


OTHERS = ("other users", "chmod go-w")
DISTRUSTED = {
    "another's file": (other_owner, "belongs to user 12345", "delete it"),
    "a file for all": (lambda path: path.chmod(0o666), *OTHERS),
    "a file of the group": (lambda path: path.chmod(0o664), *OTHERS),
    "another's folder": (lambda path: other_owner(path.parent), "12345", "NARROWPASS_CACHE_DIR"),
    "a folder for all": (lambda path: path.parent.chmod(0o777), *OTHERS),
    "a folder of the group": (lambda path: path.parent.chmod(0o775), *OTHERS),
}
"""What is done to a file; why it is not used then, and what the user may do, in words."""
