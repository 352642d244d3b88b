"""Files of stored methods: a header with a checksum, a key, and JSON.

Numbers are little endian::

    0   8 bytes   ``NPMETHOD``
    8   uint32    version of the format: 1
    12  uint32    zero
    16  uint64    bytes of the document
    24  32 bytes  SHA-256 of the key, a zero byte, and the document

The key, which is not in the file, says what the method was planned from, and by which code: a file
of another key has a wrong checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import struct
from pathlib import Path
from typing import Any

from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder
from narrowpass_planning.weights.writing import is_unused, replacing

MAGIC = b"NPMETHOD"
VERSION = 1
_FORMAT = struct.Struct("<8sIIQ32s")
_LARGEST = 1 << 28

_log = logging.getLogger("narrowpass.planning")


def read(path: Path, key: str) -> Any:
    """Return the document of a file; None where there is none that can be used.

    Another user's file, and one of another key, cut off or damaged, is none.
    """
    try:
        if reason := distrust_folder(path.parent):
            _log.info("stored methods are not read: %s", reason)
            return None
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            reason = "" if stat.S_ISREG(status.st_mode) else f"{path} is no file"
            reason = reason or distrust_file(path, status)
            if reason:
                _log.info("a stored method is not read: %s", reason)
                return None
            data = file.read(min(status.st_size, _LARGEST))  # it allocates all of it first
            with contextlib.suppress(OSError):
                os.utime(file.fileno())  # when it was used last
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.info("a stored method cannot be read: %s", str(error))
        return None
    return _parsed(data, key)


def _parsed(data: bytes, key: str) -> Any:
    if len(data) < _FORMAT.size:
        return None
    magic, version, _, size, digest = _FORMAT.unpack(data[: _FORMAT.size])
    text = data[_FORMAT.size :]
    if (magic, version, size) != (MAGIC, VERSION, len(text)) or digest != _digest(key, text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        _log.warning("a stored method is no document: %s", str(error))
        return None


def write(path: Path, key: str, document: Any) -> None:
    """Replace a file atomically, if the folder is there and nobody else writes to it."""
    text = json.dumps(document, separators=(",", ":")).encode()
    header = _FORMAT.pack(MAGIC, VERSION, 0, len(text), _digest(key, text))
    try:
        if distrust_folder(path.parent):
            return
        create_own_folder(path.parent)
        with replacing(path) as file:
            file.write(header + text)
    except OSError as error:
        _log.info("a method is planned again by the next process: %s", str(error))


def delete_unused(path: Path, start: str) -> None:
    """Delete files of other versions that nobody has used for a week.

    Args:
        path: of the file that was written.
        start: of the names of all versions of it.
    """
    with contextlib.suppress(OSError):
        for other in path.parent.glob(f"{start}*{path.suffix}"):
            if other != path and is_unused(other.stat().st_mtime):
                other.unlink(missing_ok=True)


def _digest(key: str, text: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + text).digest()
