"""Bundles that sessions were created from, kept on disk for later processes.

A *note* says what callers ask about a model, and which external files it has; it is found by the
model's identity. A bundle is found by that, the status of these files, and all else that it was
built from. Packed weights and compiled methods are kept by the backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrowpass.bundle import Bundle
from narrowpass.driver import open_bundle
from narrowpass.errors import NarrowpassError
from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder
from narrowpass_ir.files import TEMPORARY, is_left_behind, replacing_file
from narrowpass_onnxruntime.files import status_of
from narrowpass_onnxruntime.session.metadata import Interface, checked, several
from narrowpass_planning.weights import chosen_folder

_BUNDLE, _NOTE = ".narrow", ".json"
_UNUSED = 30 * 24 * 3600
"""Seconds without use after which a bundle is deleted, when another is written."""

_VERSION = "1"

_log = logging.getLogger("narrowpass.onnxruntime")


@dataclass(frozen=True)
class Note:
    """What is known of a model without reading it.

    Attributes:
        interface: what callers ask about it.
        external: paths of its external files.
    """

    interface: Interface
    external: tuple[str, ...]


def default_folder(cache_dir: str | None) -> Path:
    """Return the folder of bundles: within `cache_dir`, ``NARROWPASS_CACHE_DIR`` or the user's.

    Raises:
        UsageError: `cache_dir` cannot be the path of a folder.
    """
    return chosen_folder(cache_dir or None) / "sessions"


class Store:
    """The notes and bundles of one model.

    Args:
        folder: of all models; created when something is written.
        path: of the model; empty where it is given as bytes.
        identity: what changes when the model does.
    """

    def __init__(self, folder: Path, path: str, identity: str) -> None:
        self._folder, self._identity = folder, identity
        self._path = os.path.realpath(path) if path else ""
        self._prefix = _digest(_VERSION, identity)

    def note(self) -> Note | None:
        """Return the note of the model; None where there is none that can be used."""
        path = self._folder / f"{self._prefix}{_NOTE}"
        try:
            if self._distrusted(path):
                return None
            document = _document(path)
            interface = Interface.from_json(checked(document["interface"], dict))
            return Note(interface, several(document["external"], str))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, ValueError, TypeError) as error:
            _log.info("%s: the note cannot be read: %s", path, str(error))
            return None

    def write_note(self, note: Note) -> None:
        """Write the note of the model, and delete what belongs to models that nobody uses.

        Raises:
            OSError: the folder cannot be created, or another user can write to it.
            NarrowpassError: the file cannot be written.
        """
        create_own_folder(self._folder)
        if reason := distrust_folder(self._folder, sticky=False):
            raise PermissionError(reason)
        document: dict[str, Any] = {
            "version": _VERSION,
            "path": self._path,
            "identity": self._identity,
            "interface": note.interface.to_json(),
            "external": list(note.external),
        }
        with replacing_file(self._folder / f"{self._prefix}{_NOTE}", 0o644) as file:
            file.write(json.dumps(document).encode())
        for path in self._folder.glob(TEMPORARY):
            with contextlib.suppress(OSError):
                if is_left_behind(path):
                    path.unlink()
        for prefix in self._unused():
            for path in self._folder.glob(f"{prefix}*"):
                _delete(path)

    def place(self, key: str) -> Path:
        """Return where the bundle of a key is, or would be."""
        return self._folder / f"{self._prefix}-{_digest(key)}{_BUNDLE}"

    def find(self, key: str) -> Bundle | None:
        """Return the bundle of a key; None where there is none that can be used."""
        path = self.place(key)
        try:
            if not path.is_dir() or self._distrusted(path):
                return None
            bundle = open_bundle(path, unread=True)
            for used in (self._folder / f"{self._prefix}{_NOTE}", path):
                os.utime(used)  # when it was used last
        except (NarrowpassError, OSError) as error:
            _log.info("the model is built again: %s", str(error))
            return None
        return bundle

    def keep(self, key: str) -> None:
        """Let nobody else write to the bundle of a key, whatever the umask: it is distrusted else.

        Raises:
            OSError: it cannot be changed.
        """
        place = self.place(key)
        for path in (place, *place.rglob("*")):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))

    def discard(self, key: str) -> None:
        """Delete the bundle of a key."""
        _delete(self.place(key))

    def _distrusted(self, path: Path) -> str:
        """Return why another user may have written to a note or bundle; empty where none can.

        Raises:
            OSError: it is not there, or cannot be looked at.
        """
        return distrust_folder(self._folder, sticky=False) or distrust_file(path, path.stat())

    def _unused(self) -> Iterator[str]:
        """Yield the prefixes of models that have changed or are gone, or were not used for long."""
        for path in self._folder.glob(f"*{_NOTE}"):
            try:
                document = _document(path)
                model, identity = checked(document["path"], str), document["identity"]
                # What identifies a model for another version may be something else.
                ours = document.get("version", "1") == _VERSION
                changed = bool(ours and model) and status_of(Path(model)) != identity
                old = time.time() - path.stat().st_mtime > _UNUSED
            except (OSError, ValueError, KeyError, TypeError):
                continue  # another process has just deleted it
            if old or changed:
                yield path.name.removesuffix(_NOTE)


def _document(path: Path) -> dict[str, Any]:
    """Return a note as it was written.

    Raises:
        OSError: it cannot be read.
        TypeError: it is no object.
        ValueError: it is no JSON.
    """
    try:
        return dict(checked(json.loads(path.read_bytes()), dict))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _delete(path: Path) -> None:
    """Delete a file or a folder; what cannot be deleted now stays for another time."""
    if os.path.isdir(path):  # noqa: PTH112  # pathlib's raises where it may not look
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
