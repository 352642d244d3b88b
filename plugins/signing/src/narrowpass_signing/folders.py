"""How the files of a bundle are hashed: every one but the signature itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from model_signing import hashing

from narrowpass.errors import BundleError


class EveryFile(hashing.Config):
    """SHA-256 of every file of a folder but its signature, whatever the signature leaves out.

    model-signing leaves out files of git by default, and when it verifies, what the signature
    itself says to leave out: what a signature does not cover must be an error here.
    """

    def __init__(self, folder: Path, signature: Path) -> None:
        """Leave out `signature` alone, where it is in `folder`. Both paths are real ones."""
        super().__init__()
        inside = signature.is_relative_to(folder)
        paths = [signature.relative_to(folder)] if inside else []
        self.set_ignored_paths(paths=paths, ignore_git_paths=False)

    def add_ignored_paths(
        self, *, model_path: hashing.PathLike, paths: Iterable[hashing.PathLike]
    ) -> None:
        """Leave out no more, although the signature that is verified asks for it."""


def check_files(folder: Path, shown: str) -> None:
    """Check that a folder holds regular files and folders only.

    Raises:
        BundleError: something else is there, such as a symbolic link, or a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise BundleError(f"{shown}: {error.filename} cannot be read: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                inside = path.relative_to(folder)
                raise BundleError(
                    f"{shown}: {inside} is {what}, which no signature covers; remove it, or put "
                    "the file itself there"
                )
