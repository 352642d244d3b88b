"""The weights file: a safetensors writer that aligns, streams and hashes, and a strict reader.

The format allows no holes. So the header is padded with spaces up to a multiple of 64 bytes,
and a gap before an aligned tensor is an entry of its own, ``__pad.N``, of zero bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import MappedTensor
from narrowpass_ir.tensors.streaming import CHUNK, Digest, default_threads, stream
from narrowpass_ir.tensors.threads import ThreadPool

ALIGNMENT = 64
"""Each tensor starts at a multiple of this many bytes in the file."""

Progress = Callable[[int, int], None]
"""Called with the bytes written so far and the bytes in all; never by two threads at once."""

_SYNC_SECONDS = 0.1

_RESERVED = re.compile(r"__metadata__|__pad\.\d+")

# Only codes that readers have known for years: with one unknown code a whole file is
# unreadable, and C64 or F8_E8M0 came late. Those of less than a byte do not even say the order
# in the byte.
_CODES: Mapping[ir.DataType, str] = {
    ir.DataType.BOOL: "BOOL",
    ir.DataType.UINT8: "U8",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT16: "U16",
    ir.DataType.INT16: "I16",
    ir.DataType.UINT32: "U32",
    ir.DataType.INT32: "I32",
    ir.DataType.UINT64: "U64",
    ir.DataType.INT64: "I64",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.FLOAT: "F32",
    ir.DataType.DOUBLE: "F64",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
}


def is_reserved(key: str) -> bool:
    """Return whether the format, or the padding, needs `key` for itself."""
    return _RESERVED.fullmatch(key) is not None


@dataclass(frozen=True)
class Entry:
    """One tensor as the header describes it.

    Attributes:
        code: the format's name of the element type; ``U8`` for types that it lacks.
        shape: as in ONNX, or the number of bytes for types that the format lacks.
        offset: of the first byte, from the start of the file.
        nbytes: its length.
    """

    code: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def stored_form(dtype: ir.DataType, shape: tuple[int, ...], nbytes: int) -> tuple[str, list[int]]:
    """Return the code and the shape under which the weights file holds a tensor."""
    if dtype in _CODES:
        return _CODES[dtype], list(shape)
    return "U8", [nbytes]


@dataclass(frozen=True)
class Layout:
    """Where everything in a weights file is, known before a byte of it is written.

    Attributes:
        header: the first bytes of the file, a multiple of 64 of them.
        entries: the tensors by data key, without the padding.
        size: the length of the file.
    """

    header: bytes
    entries: Mapping[str, Entry]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[str, ir.TensorProtocol]) -> Layout:
        """Lay out tensors in the order given, each at a multiple of 64 bytes.

        Args:
            tensors: by data key; no key may be reserved.
        """
        described: dict[str, dict[str, Any]] = {}
        position = pads = 0
        for key, tensor in tensors.items():
            gap = -position % ALIGNMENT
            if gap:
                described[f"__pad.{pads}"] = _describe("U8", [gap], position, gap)
                pads += 1
                position += gap
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            code, dims = stored_form(tensor.dtype, shape, tensor.nbytes)
            described[key] = _describe(code, dims, position, tensor.nbytes)
            position += tensor.nbytes
        text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        entries = parse_header(header, len(header) + position)
        return cls(header, entries, len(header) + position)


def _describe(code: str, shape: list[int], start: int, nbytes: int) -> dict[str, Any]:
    return {"dtype": code, "shape": shape, "data_offsets": [start, start + nbytes]}


def header_size(start: bytes, size: int) -> int:
    """Return the length of the header, with its own length field, from the first 8 bytes.

    Raises:
        ModelError: it does not fit into a file of `size` bytes.
    """
    length = 8 + int.from_bytes(start[:8], "little")
    if len(start) < 8 or length > size:
        raise ModelError("its header is longer than the file, which is cut short or damaged")
    return length


def parse_header(header: bytes, size: int) -> dict[str, Entry]:
    """Read the header of a weights file.

    Args:
        header: as long as `header_size` says.
        size: the length of the whole file.

    Returns:
        The tensors by data key, in the order of the header, without the padding.

    Raises:
        ModelError: it is not what this module writes. The message does not name the file.
    """
    try:
        described = parse_json(header[8:])
        entries = {key: _entry(raw, len(header)) for key, raw in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"its header is damaged ({error})") from error
    position = len(header)
    for key, entry in entries.items():
        if entry.offset != position or entry.nbytes < 0:
            raise ModelError(f"its header is damaged (tensor {key!r} is out of place)")
        position += entry.nbytes
    if position != size:
        raise ModelError(f"it has {size} bytes where its header says {position}")
    return {key: entry for key, entry in entries.items() if not is_reserved(key)}


def _entry(raw: dict[str, Any], start: int) -> Entry:
    first, stop = raw["data_offsets"]
    shape = tuple(raw["shape"])
    if not all(type(number) is int for number in (first, stop, *shape)):
        raise ValueError("an offset or a dimension is not a whole number")
    return Entry(str(raw["dtype"]), shape, start + first, stop - first)


class _StoppedError(Exception):
    """Another thread failed, and this one stops."""


class _WriteError(Exception):
    """The output cannot be written: not an `OSError`, which is what a source raises."""


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data`: a disk that is nearly full takes a part, and fails at the next call."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view = view[count:]
        offset += count


class _Place:
    """A write-only file of one tensor: hashes each piece, then writes it where it belongs."""

    def __init__(
        self, fd: int, key: str, entry: Entry, stop: threading.Event, advance: Callable[[int], None]
    ) -> None:
        self._fd = fd
        self._key = key
        self._entry = entry
        self._stop = stop
        self._advance = advance
        self._digest = Digest(0)
        self._written = 0

    def write(self, data: bytes | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        if self._written + len(view) > self._entry.nbytes:
            raise self._wrong_length(f"at least {self._written + len(view)}")
        for start in range(0, len(view), CHUNK):
            if self._stop.is_set():
                raise _StoppedError
            piece = view[start : start + CHUNK]
            self._digest.write(piece)
            try:
                _write_at(self._fd, piece, self._entry.offset + self._written)
            except OSError as error:
                raise _WriteError from error
            self._written += len(piece)
            self._advance(len(piece))
        return len(view)

    def finish(self) -> str:
        """Return the content hash of the tensor, which must be complete."""
        if self._written != self._entry.nbytes:
            raise self._wrong_length(str(self._written))
        return self._digest.sha256

    def _wrong_length(self, got: str) -> ModelError:
        return ModelError(
            f"tensor {self._key!r} has {got} bytes where its type and shape need "
            f"{self._entry.nbytes}; the pass that created it is at fault"
        )


def write(
    fd: int,
    layout: Layout,
    tensors: Mapping[str, ir.TensorProtocol],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, str]:
    """Write a weights file, hashing each tensor on the way, and sync it.

    Args:
        fd: an empty file, open for writing.
        layout: of `tensors`.
        tensors: by data key.
        threads: how many tensors are read, hashed and written at once; None for up to four.
        progress: called with the bytes written.

    Returns:
        The SHA-256 of each tensor's bytes, by data key, in the order of `tensors`.

    Raises:
        ModelError: a tensor cannot be read, has more or fewer bytes than it should, or others
            than its hash says.
        OSError: the file cannot be written.
    """
    total = sum(entry.nbytes for entry in layout.entries.values())
    stop, materialize, lock = threading.Event(), threading.Lock(), threading.Lock()
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        if progress is None:
            return
        with lock:
            done += count
            progress(done, total)

    def put(key: str) -> str:
        tensor, place = tensors[key], _Place(fd, key, layout.entries[key], stop, advance)
        stream(tensor, place, materialize)
        sha256 = place.finish()
        if isinstance(tensor, MappedTensor):
            tensor.check(sha256)  # a damaged bundle must not become a new one that is whole
        return sha256

    _write_at(fd, layout.header, 0)
    # The largest first, so that no thread is left alone with it at the end.
    order = sorted(tensors, key=lambda key: -layout.entries[key].nbytes)
    with _sync_in_background(fd), ThreadPool(threads or default_threads()) as pool:
        try:
            futures = {key: pool.submit(put, key) for key in order}
            _, waiting = wait(futures.values(), return_when=FIRST_EXCEPTION)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        if waiting:
            stop.set()
            pool.shutdown(cancel_futures=True)
        _raise_first([futures[key].exception() for key in order if not futures[key].cancelled()])
    os.fsync(fd)
    return {key: futures[key].result() for key in tensors}


@contextlib.contextmanager
def _sync_in_background(fd: int) -> Iterator[None]:
    """Sync a file again and again while it is written: the disk works while hashes are taken.

    Raises:
        OSError: a sync failed. The system reports that once, so it must not get lost here.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    end = threading.Event()

    def repeat() -> None:
        while not end.wait(_SYNC_SECONDS):
            sync(fd)

    with ThreadPoolExecutor(1) as pool:
        repeated = None
        with contextlib.suppress(RuntimeError):  # no thread more: the last sync writes all of it
            repeated = pool.submit(repeat)
        try:
            yield
        finally:
            end.set()
        if repeated is not None:
            repeated.result()


def _raise_first(errors: list[BaseException | None]) -> None:
    for error in errors:
        if isinstance(error, _WriteError) and error.__cause__ is not None:
            raise error.__cause__
        if error is not None and not isinstance(error, _StoppedError):
            raise error
