"""Bytes of quantized weights on their way to a bundle, in temporary files."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import PassError
from narrowpass_ir.io import MappedFile, MappedTensor

Array = np.ndarray[Any, Any]

SMALL = 1 << 16
"""Bytes up to which a buffer stays in memory."""


class Buffer:
    """Bytes that are written once, and read as tensors afterwards.

    A large one is an unlinked temporary file (in ``TMPDIR``), which lives as long as its tensors
    do, so that the quantized weights of a model are never in memory together.

    Args:
        size: the number of bytes; all are 0 at first.

    Raises:
        PassError: there is no space for the file.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._file: MappedFile | None = None
        self._descriptor = -1
        if size <= SMALL:
            self._bytes: Array | None = np.zeros(size, np.uint8)
            return
        try:
            with tempfile.TemporaryFile(prefix="narrowpass-int4-", buffering=0) as file:
                self._descriptor = os.dup(file.fileno())
                # Blocks are reserved now: on a full disk a write to a mapping kills the process.
                os.posix_fallocate(self._descriptor, 0, size)
                self._bytes = np.memmap(file, np.uint8, "r+", shape=(size,))
        except OSError as error:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            raise PassError(
                f"{size} bytes of quantized weights cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror}; set TMPDIR to a folder with more space"
            ) from error

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._size

    @property
    def array(self) -> Array:
        """The bytes, uint8 [size], to be written to.

        Raises:
            ValueError: a tensor was asked for already.
        """
        if self._bytes is None or self._file is not None:
            raise ValueError("the buffer is finished")
        return self._bytes

    def evict(self) -> None:
        """Take its pages out of this process's memory; the file has what was written."""
        if isinstance(self._bytes, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping: Any = self._bytes.base
            while not isinstance(mapping, mmap.mmap):
                mapping = mapping.base
            mapping.madvise(mmap.MADV_DONTNEED)

    def tensor(self, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> ir.TensorProtocol:
        """Return the bytes as a tensor; nothing is written afterwards.

        Args:
            dtype: of the elements.
            shape: of the tensor; of as many bytes as the buffer has.
            name: of the tensor.
        """
        if self._descriptor < 0:
            return self._in_memory(dtype, shape, name)
        if self._file is None:
            if isinstance(self._bytes, np.memmap):
                self._bytes.flush()
            self._bytes = None
            self._file = MappedFile(self._descriptor, "temporary file of quantized weights")
        return MappedTensor(self._file, 0, dtype, shape, name)

    def _in_memory(
        self, dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.TensorProtocol:
        packed = self._bytes
        if packed is None:
            raise ValueError("the buffer is finished")
        if dtype.bitwidth < 8:
            return ir.PackedTensor(packed, dtype, shape=ir.Shape(shape), name=name)
        return ir.Tensor(packed.view(dtype.numpy()).reshape(shape), dtype=dtype, name=name)

    def __del__(self) -> None:
        """Close the file where no tensor took it over."""
        if self._descriptor >= 0 and self._file is None:
            os.close(self._descriptor)
            self._descriptor = -1


def put_nibbles(target: Array, start: int, integers: Array) -> None:
    """Write integers from 0 to 15 from an element on, two in a byte, the first in the low bits.

    Args:
        target: uint8 [bytes]; the elements to be written are 0.
        start: index of the first element.
        integers: uint8, of any shape, in order.
    """
    flat = integers.reshape(-1)
    if start % 2 and flat.size:
        target[start // 2] |= flat[0] << 4
        start, flat = start + 1, flat[1:]
    pairs = flat.size // 2
    first = start // 2
    np.bitwise_or(
        flat[0 : 2 * pairs : 2],
        flat[1 : 2 * pairs : 2] << 4,
        out=target[first : first + pairs],
    )
    if flat.size % 2:
        target[first + pairs] |= flat[-1]
