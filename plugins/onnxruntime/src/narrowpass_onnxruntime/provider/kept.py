"""The folder of bundles that later sessions and processes compile groups from."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from narrowpass.bundle import is_bundle
from narrowpass_ir.data.trust import create_own_folder, distrust_folder
from narrowpass_onnxruntime.provider.identities import secret_of
from narrowpass_onnxruntime.turns import LOCK
from narrowpass_planning.weights import chosen_folder

_FOLDER = "onnxruntime"
_BUNDLE = ".narrow"
_UNUSED = 30 * 24 * 3600
"""Seconds without use after which a bundle is deleted, when another is written."""


class KeptBundles:
    """Bundles on disk, by name.

    Args:
        cache_dir: that their folder is in; None for the user's.

    Attributes:
        secret: that names of contents depend on; see `secret_of`.

    Raises:
        OSError: the folder cannot be created, read or written, or other users can write to it.
    """

    def __init__(self, cache_dir: Path | None) -> None:
        self._folder = chosen_folder(cache_dir) / _FOLDER
        create_own_folder(self._folder)
        if reason := distrust_folder(self._folder):
            raise PermissionError(reason)
        self.secret = secret_of(self._folder)

    def place(self, name: str) -> Path:
        """Return where a bundle is, or would be."""
        return self._folder / f"{name}{_BUNDLE}"

    def find(self, name: str) -> Path | None:
        """Return the bundle of a name, which is used now; None where there is none."""
        path = self.place(name)
        if not is_bundle(path):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # when it was used last
        return path

    def discard(self, name: str) -> None:
        """Delete the bundle of a name. Programs that have it mapped keep it."""
        shutil.rmtree(self.place(name), ignore_errors=True)

    def delete_unused(self) -> None:
        """Delete bundles that nobody has used for 30 days."""
        for path in self._folder.glob(f"*{_BUNDLE}"):
            with contextlib.suppress(OSError):  # another process has just deleted it
                if time.time() - path.stat().st_mtime > _UNUSED:
                    shutil.rmtree(path, ignore_errors=True)
                    path.with_name(path.name + LOCK).unlink(missing_ok=True)
