"""The serialized bytes of any tensor: as a stream, in samples, and as a content hash."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from narrowpass_ir.errors import ModelError

CHUNK = 1 << 20
"""Bytes that a stream holds in memory at a time."""

_SAMPLES = 16
_SAMPLE_BYTES = 256
SAMPLED = _SAMPLES * _SAMPLE_BYTES
"""Bytes that a sample looks at; a tensor of no more than these is sampled whole."""

_LARGE = 32 << 20


class Sink(Protocol):
    """What takes a tensor's bytes."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data`, and return its length."""


@runtime_checkable
class RandomAccess(Protocol):
    """A tensor that reads any part of its serialized bytes without the rest."""

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`."""


def default_threads() -> int:
    """Return the number of threads that read, hash and write tensors."""
    if hasattr(os, "sched_getaffinity"):
        return min(4, len(os.sched_getaffinity(0)))
    return min(4, os.cpu_count() or 1)


def stream(tensor: ir.TensorProtocol, sink: Sink, materialize: threading.Lock) -> None:
    """Write the serialized bytes of `tensor` into `sink`, piece by piece.

    Args:
        tensor: any tensor but one of strings.
        sink: where the bytes go.
        materialize: held while a large tensor that cannot stream has its bytes in memory, so
            that threads hold one such tensor at a time between them.

    Raises:
        ModelError: the tensor's source cannot be read.
    """
    try:
        view = _view(tensor)
        if view is not None:
            for start in range(0, len(view), CHUNK):
                sink.write(view[start : start + CHUNK])
        elif isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
            for piece in _pieces(tensor.raw, tensor.dtype):
                sink.write(piece)
        elif _materializes(tensor) and tensor.nbytes >= _LARGE:
            with materialize:
                _send(tensor, sink)
        else:
            _send(tensor, sink)
    except (OSError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name!r} cannot be read: {error}") from error


def _materializes(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.LazyTensor | ir.TensorProtoTensor) or not hasattr(tensor, "tofile")


def _send(tensor: ir.TensorProtocol, sink: Sink) -> None:
    # Not in the protocol, but all tensors of onnx-ir have it.
    tofile = getattr(tensor, "tofile", None)
    if tofile is not None:
        tofile(sink)
    else:
        sink.write(tensor.tobytes())


def _view(tensor: ir.TensorProtocol) -> memoryview | None:
    """Return the memory that holds what ONNX serializes, where there is such memory."""
    if isinstance(tensor, ir.PackedTensor):
        return _memory(tensor.numpy_packed())
    if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
        return _memory(tensor.raw) if tensor.dtype.bitwidth >= 8 else None
    return None


def _memory(array: np.ndarray[Any, Any]) -> memoryview | None:
    little = array.dtype.byteorder == "<" or sys.byteorder == "little"
    if not array.flags.c_contiguous or array.dtype.byteorder == ">" or not little:
        return None
    flat: np.ndarray[Any, Any] = array.reshape(-1).view(np.uint8)
    return flat.data if array.size else memoryview(b"")


def _pieces(array: np.ndarray[Any, Any], dtype: ir.DataType) -> Iterator[bytes]:
    """Yield the serialized bytes of an array whose memory does not hold them, piece by piece."""
    if dtype.bitwidth < 8:
        # A multiple of 4 elements fills whole bytes in 2, 4 and 6 bits.
        rows, step = array.reshape(-1), CHUNK
    else:
        rows = np.atleast_1d(array)
        step = max(1, CHUNK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        yield ir.Tensor(rows[start : start + step], dtype=dtype).tobytes()


def _sampled_ranges(nbytes: int) -> list[tuple[int, int]]:
    """Return the (offset, size) of what is sampled of `nbytes` bytes: ends and between."""
    if nbytes <= SAMPLED:
        return [(0, nbytes)]
    last = nbytes - _SAMPLE_BYTES
    return [(last * index // (_SAMPLES - 1), _SAMPLE_BYTES) for index in range(_SAMPLES)]


class Digest:
    """A sink that hashes what it takes, and picks the samples out of it."""

    def __init__(self, nbytes: int) -> None:
        self._sha = hashlib.sha256()
        self._position = 0
        self._samples = [
            (start, start + size, bytearray()) for start, size in _sampled_ranges(nbytes)
        ]

    def write(self, data: bytes | memoryview, /) -> int:
        """Hash all of `data`, and return its length."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            self._sha.update(view[start : start + CHUNK])
        end = self._position + len(view)
        for first, stop, picked in self._samples:
            if first < end and stop > self._position:
                low = max(first - self._position, 0)
                picked.extend(view[low : min(stop, end) - self._position])
        self._position = end
        return len(view)

    @property
    def sha256(self) -> str:
        """The hash of all that was written, in hexadecimal."""
        return self._sha.hexdigest()

    @property
    def sample(self) -> bytes:
        """The sampled bytes."""
        return b"".join(bytes(picked) for _, _, picked in self._samples)


def digest(tensor: ir.TensorProtocol, materialize: threading.Lock) -> Digest:
    """Read the whole tensor once, for its hash and its sample."""
    taken = Digest(tensor.nbytes)
    stream(tensor, taken, materialize)
    return taken


def sample(tensor: ir.TensorProtocol) -> bytes | None:
    """Return the sampled bytes, or None where they cost as much as the whole tensor."""
    ranges = _sampled_ranges(tensor.nbytes)
    if isinstance(tensor, RandomAccess):
        return b"".join(tensor.read(offset, size) for offset, size in ranges)
    view = _view(tensor)
    if view is None and isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        view = _memory(tensor.numpy())
    if view is None:
        return None
    return b"".join(bytes(view[offset : offset + size]) for offset, size in ranges)
