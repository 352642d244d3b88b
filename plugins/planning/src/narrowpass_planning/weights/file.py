"""The file of packed weights: its format, validation, and atomic writing.

Numbers are little endian. A header of 128 bytes::

    0   8 bytes   ``NPWCACHE``
    8   uint32    version of the format: 2
    12  uint32    size of the header: 128
    16  uint64    where the index starts
    24  uint64    bytes of the index, to the end of the file
    32  32 bytes  SHA-256 of the index
    64  32 bytes  zeros
    96  32 bytes  SHA-256 of the 96 bytes before

then blocks, each at a multiple of 128 bytes, then the index, a JSON document::

    {"architecture": "x86_64", "build": "78e8776e...",
     "fingerprints": [[id, value], ...],
     "entries": [[name, seed, fingerprint id, offset, size, sha256], ...]}

Blocks do not overlap. The SHA-256 of a block is that of a line of its name, seed, fingerprint id
and size, with a space between and a newline behind, and of its bytes: under another name it is
wrong.

A fingerprint is what a packing algorithm yields for a fixed input (see `Packer.fingerprint`):
another processor, for which it packs otherwise, has another one. Blocks that a backend packs itself
have the fingerprint 2³² - 1, of value 0, and the version of their layout as the seed.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from narrowpass.errors import ModelError
from narrowpass.runtime.processors import usable_processors
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.data.trust import distrust_file
from narrowpass_ir.io import MappedFile
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_planning.weights.entry import ALIGNMENT, Entry
from narrowpass_planning.weights.packer import Packer, UnusableError
from narrowpass_planning.weights.store import OWN_ALGORITHM

MAGIC = b"NPWCACHE"
VERSION = 2
HEADER = 128
_FORMAT = struct.Struct("<8sIIQQ32s32x")
_DIGITS = frozenset("0123456789abcdef")
_LARGEST_INDEX = 1 << 30
_PIECE = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A block in a file: `offset` and `size` in bytes, and the SHA-256 of the block."""

    name: str
    seed: int
    fingerprint: int
    offset: int
    size: int
    sha256: str

    @property
    def key(self) -> tuple[str, int, int]:
        """The key that identifies a block."""
        return self.name, self.seed, self.fingerprint


class UntrustedError(UnusableError):
    """A file that other users can write to."""


class PackedFile:
    """A mapped file of packed weights. Header and index are checked when it is opened.

    A file that other users can write to is not read.

    Args:
        path: of the file.
        packer: the packing code of this process; a file of another version is not used.

    Attributes:
        path: where it was opened.
        entries: its blocks.
        size: its bytes.
        status: device, inode, size and times: it changes when the file is replaced or written.

    Raises:
        UntrustedError: it belongs to another user, or others may write to it.
        UnusableError: not such a file, of another version, machine or build of the library,
            packed for another processor, cut off, or damaged.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, packer: Packer) -> None:
        self.path = path
        # Without O_NONBLOCK a FIFO would hang here, before it can be refused.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            reason = distrust_file(path, status)
            if reason:
                raise UntrustedError(reason)
        except (OSError, UntrustedError):
            os.close(descriptor)
            raise
        self.status = _status(status)
        try:
            self._file = MappedFile(descriptor, str(path))
            index, end = _read_index(self._file)
            self.entries = tuple(_entries(index, end))
            _check_machine(index, packer)
            self.size = self._file.size
            self._bytes = np.frombuffer(self._file.mapping, np.uint8)
        except ModelError as error:
            raise UnusableError(str(error)) from error
        except UnusableError as error:
            raise UnusableError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close the file; the mapping stays."""
        self._file.close()

    def addressed(self) -> Iterator[Entry]:
        """Return the blocks with their addresses; each keeps this object, which has the mapping."""
        start = self._bytes.ctypes.data
        for item in self.entries:
            key = item.key
            yield Entry(*key, start + item.offset, item.size, "mapped", mapped=True, owner=self)

    def damaged(self) -> list[Stored]:
        """Read all blocks and return those whose checksum does not match.

        Raises:
            UnusableError: the file was changed meanwhile, or cannot be read.
        """

        def is_wrong(item: Stored) -> bool:
            # Not by the mapping: where a file is cut off meanwhile, reading that is a crash.
            digest = _key_digest(item.key, item.size)
            for start in range(0, item.size, _PIECE):
                piece = self._file.read(item.offset + start, min(_PIECE, item.size - start))
                digest.update(piece)
            return digest.hexdigest() != item.sha256

        try:
            with ThreadPool(usable_processors()) as pool:
                wrong = list(pool.map(is_wrong, self.entries))
            status = _status(self._file.status())
        except ModelError as error:
            raise UnusableError(str(error)) from error
        if status != self.status:
            raise UnusableError(f"{self.path}: it was changed while it was read")
        return [item for item, is_it in zip(self.entries, wrong, strict=True) if is_it]

    def block(self, item: Stored) -> np.ndarray[Any, Any]:
        """Return the bytes of a block."""
        return self._bytes[item.offset : item.offset + item.size]


def _status(status: os.stat_result) -> list[int]:
    times = status.st_mtime_ns, status.st_ctime_ns
    return [status.st_dev, status.st_ino, status.st_size, *times]


def _read_index(file: MappedFile) -> tuple[dict[str, Any], int]:
    """Return the index, and where it starts."""
    if file.size < HEADER:
        raise UnusableError("it is too short to be a file of packed weights")
    header = file.read(0, HEADER)
    magic, version, header_size, start, size, digest = _FORMAT.unpack(header[:96])
    if magic != MAGIC:
        raise UnusableError("it is not a file of packed weights")
    if version != VERSION:
        raise UnusableError(f"it is of format version {version}, not {VERSION}")
    if hashlib.sha256(header[:96]).digest() != header[96:] or header_size != HEADER:
        raise UnusableError("its header is damaged")
    if start + size != file.size or start < HEADER or size > _LARGEST_INDEX:
        raise UnusableError("it is cut off, or something was written after its end")
    text = file.read(start, size)
    if hashlib.sha256(text).digest() != digest:
        raise UnusableError("its index is damaged")
    try:
        index = parse_json(text)
    except ValueError as error:
        raise UnusableError(f"its index is not JSON as it should be: {error}") from error
    if not isinstance(index, dict):
        raise UnusableError("its index is not an object")
    return index, start


def _entries(index: dict[str, Any], end: int) -> list[Stored]:
    """Return the blocks, which lie before `end`, in their order in the file."""
    found: list[Stored] = []
    rows = index.get("entries")
    if not isinstance(rows, list):
        raise UnusableError("the index has no entries")
    for row in rows:
        if not isinstance(row, list) or list(map(type, row)) != [str, int, int, int, int, str]:
            raise UnusableError(f"the index has an entry that is none: {_shown(row)}")
        item = Stored(*row)
        named = all(len(text) == 64 and _DIGITS.issuperset(text) for text in (row[0], row[5]))
        numbers = all(0 <= number < 1 << 32 for number in (item.seed, item.fingerprint))
        inside = HEADER <= item.offset <= end - item.size and item.size > 0
        if not (named and numbers and inside) or item.offset % ALIGNMENT:
            raise UnusableError(f"the index has an entry that cannot be: {_shown(row)}")
        found.append(item)
    found.sort(key=lambda item: item.offset)
    for one, other in itertools.pairwise(found):
        if one.offset + one.size > other.offset:
            raise UnusableError(f"blocks overlap at {other.offset}")
    if len({item.key for item in found}) < len(found):
        raise UnusableError("the index has two entries of one name")
    return found


def _shown(row: object) -> str:
    text = repr(row)
    return text if len(text) <= 300 else text[:297] + "..."


def _check_machine(index: dict[str, Any], packer: Packer) -> None:
    """Check that blocks were packed by the same code for an equivalent processor."""
    if (index.get("architecture"), index.get("build")) != (platform.machine(), packer.build()):
        raise UnusableError("it was packed by another build of the library, or another machine")
    prints = index.get("fingerprints")
    if not isinstance(prints, list) or not all(
        isinstance(pair, list) and list(map(type, pair)) == [int, int] for pair in prints
    ):
        raise UnusableError("the index has no fingerprints")
    for number, value in prints:
        if (number, value) == (OWN_ALGORITHM, 0):
            continue  # what is looked for has the version of its layout in its key
        valid = 0 <= number < 1 << 32 and 0 <= value < 1 << 32
        if not valid or not packer.packs_alike(number, value):
            raise UnusableError("its weights were packed for another processor")
    known = {pair[0] for pair in prints}
    if any(row[2] not in known for row in index["entries"]):
        raise UnusableError("an entry was packed by an algorithm that the index does not list")


def write(
    file: BinaryIO, entries: Sequence[Entry], kept: PackedFile | None, packer: Packer
) -> None:
    """Write blocks to an empty file.

    Args:
        file: open for writing.
        entries: blocks in memory, named.
        kept: a file whose other blocks are kept.
        packer: what packed them.

    Raises:
        UnusableError: an algorithm that the packer does not know.
        OSError: the file system refuses.
    """
    blocks: dict[tuple[str, int, int], tuple[Any, str]] = {}
    for entry in entries:
        if not entry.mapped:
            block = (ctypes.c_ubyte * entry.size).from_address(entry.address)
            blocks[entry.name, entry.seed, entry.fingerprint] = block, ""
    if kept is not None:
        for item in kept.entries:
            # With the checksum that it had: what was damaged meanwhile must not get a right one.
            blocks.setdefault(item.key, (kept.block(item), item.sha256))
    for entry in entries:
        # What lies in a file that is not kept, such as one that another program had mapped.
        block = (ctypes.c_ubyte * entry.size).from_address(entry.address)
        blocks.setdefault((entry.name, entry.seed, entry.fingerprint), (block, ""))
    rows: list[list[object]] = []
    offset = HEADER
    for key, (block, known) in blocks.items():
        view = memoryview(block).cast("B")
        digest = known or _digest(key, view)
        file.seek(offset)
        file.write(view)
        rows.append([*key, offset, view.nbytes, digest])
        offset = -(-(offset + view.nbytes) // ALIGNMENT) * ALIGNMENT
    index = {
        "architecture": platform.machine(),
        "build": packer.build(),
        "fingerprints": list(_fingerprints((key[2] for key in blocks), packer)),
        "entries": rows,
    }
    text = json.dumps(index, separators=(",", ":")).encode()
    file.seek(offset)
    file.write(text)
    header = _FORMAT.pack(MAGIC, VERSION, HEADER, offset, len(text), hashlib.sha256(text).digest())
    file.seek(0)
    file.write(header + hashlib.sha256(header).digest())


def _digest(key: tuple[str, int, int], view: memoryview) -> str:
    digest = _key_digest(key, view.nbytes)
    digest.update(view)
    return digest.hexdigest()


def _key_digest(key: tuple[str, int, int], size: int) -> hashlib._Hash:
    """Start the checksum of a block with its key, so that blocks cannot be exchanged."""
    name, seed, fingerprint = key
    return hashlib.sha256(f"{name} {seed} {fingerprint} {size}\n".encode())


def _fingerprints(numbers: Iterable[int], packer: Packer) -> Iterator[tuple[int, int]]:
    for number in sorted(set(numbers)):
        yield number, 0 if number == OWN_ALGORITHM else packer.fingerprint(number)
