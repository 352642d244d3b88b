"""What names a constant: its place in a file that is mapped, or its content.

onnxruntime maps external data. Who asks for the place of a constant there reads none of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_onnxruntime.files import status_of
from narrowpass_onnxruntime.provider.graph import Tensor, element_type, memory_of
from narrowpass_onnxruntime.provider.library import ffi, lib

_SMALL = 1 << 16
"""Bytes below which content is hashed at once."""

_FILES = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+p .* (/.*)$", re.MULTILINE)
"""A private mapping of a file in ``/proc/self/maps``, which is read much faster than ``smaps``."""

_MAPPED = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+p ([0-9a-f]+) (\w+):(\w+) (\d+) +(/.*)\n"
    r"(?:[A-Z].*\n)*?Anonymous: +(\d+) kB\n(?:[A-Z].*\n)*?Swap: +(\d+) kB$",
    re.MULTILINE,
)
"""A private mapping of a file in ``/proc/self/smaps``, with what was written to it and is only in
this process."""

_MOST_THREADS = 4

_KEY = "key"
_SECRET = 32


@dataclass(frozen=True)
class _Mapping:
    """A part of a file in memory, as it is in the file.

    Attributes:
        start: the first address.
        end: the address behind it.
        offset: of the first byte in the file.
        status: of the file; see `status_of`.
    """

    start: int
    end: int
    offset: int
    status: str


class Identities:
    """Names constants of one graph.

    Args:
        secret: that names of contents depend on; see `secret_of`.
        threads: that hash a large constant; more than a few wait for the same memory.
    """

    def __init__(self, secret: bytes, threads: int = 1) -> None:
        self._threads = min(threads, _MOST_THREADS)
        self._key = hashlib.shake_256(secret).digest(lib.NP_CONDENSE_KEY)
        self._files = _files()
        self._mappings: list[_Mapping] | None = None  # read where a constant is in one of the files

    def of(self, tensor: Tensor) -> str:
        """Return what changes when the type, the shape or the bytes of a constant do."""
        dtype, shape = element_type(tensor.pointer)
        memory = memory_of(tensor.pointer)
        place = self._place(memory) if memory.nbytes >= _SMALL else ""
        return f"{dtype} {shape} {place or self._content(memory)}"

    def _place(self, memory: np.ndarray[Any, Any]) -> str:
        """Return file and offset of memory that is mapped; empty for other memory."""
        start = memory.ctypes.data
        end = start + memory.nbytes
        if not any(first <= start and end <= last for first, last in self._files):
            return ""
        if self._mappings is None:
            self._mappings = _mappings()
        for found in self._mappings:
            if found.start <= start and end <= found.end:
                return f"{found.status} at {found.offset + start - found.start}"
        return ""

    def _content(self, memory: np.ndarray[Any, Any]) -> str:
        if memory.nbytes < _SMALL:
            return hashlib.sha256(memory.data).hexdigest()
        pairs = np.empty((-(-memory.nbytes // lib.NP_CONDENSE_BLOCK), 2), np.uint64)
        share = -(-len(pairs) // self._threads)  # blocks of a thread
        with ThreadPool(self._threads) as pool:
            for _ in pool.map(
                lambda first: self._condense(memory, pairs, first, share),
                range(0, len(pairs), share),
            ):
                pass
        return f"{memory.nbytes} {hashlib.sha256(pairs.data).hexdigest()}"

    def _condense(
        self, memory: np.ndarray[Any, Any], pairs: np.ndarray[Any, Any], first: int, count: int
    ) -> None:
        """Write the pairs of so many blocks, without the interpreter's lock."""
        block = lib.NP_CONDENSE_BLOCK
        part = memory[first * block : (first + count) * block]
        lib.np_condense(
            ffi.from_buffer(part),
            part.nbytes,
            ffi.from_buffer(self._key),
            ffi.cast("uint64_t *", pairs[first:].ctypes.data),
            lib.np_condense_levels() - 1,
        )


def secret_of(folder: Path) -> bytes:
    """Return the secret of a cache folder; it is drawn when it is first asked for.

    Raises:
        OSError: it cannot be read or written.
    """
    path = folder / _KEY
    if not path.exists():
        fresh = folder / f"{_KEY}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with open(fresh, "xb", opener=_private) as file:
                file.write(os.urandom(_SECRET))
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)  # whole, or not at all
        finally:
            fresh.unlink(missing_ok=True)
    return path.read_bytes()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _files() -> list[tuple[int, int]]:
    """Return the first address of each private mapping of a file, and the one behind it."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [(int(match[1], 16), int(match[2], 16)) for match in _FILES.finditer(text)]


def _mappings() -> list[_Mapping]:
    """Return the mappings of files to which nobody wrote."""
    try:
        text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    found, known = [], dict[str, str]()
    for match in _MAPPED.finditer(text):
        start, end, offset, major, minor = (int(each, 16) for each in match.groups()[:5])
        path, written = match[7], int(match[8]) + int(match[9])
        if path not in known:
            known[path] = _status(path, (major, minor, int(match[6])))
        if not written and known[path]:
            found.append(_Mapping(start, end, offset, known[path]))
    return found


def _status(path: str, identity: tuple[int, int, int]) -> str:
    """Return the status of a file; empty where another one is at its path now."""
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    same = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) == identity
    return status_of(Path(path)) if same else ""
