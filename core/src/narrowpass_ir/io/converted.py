"""Tensors of another element type than their source has, converted when they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass_ir.io.mapped import MappedTensor, Writable, write_all

CHUNK = 1 << 20
"""Bytes of the result that are in memory at a time."""


class ConvertedTensor(ir.TensorProtocol):
    """The elements of a tensor, rounded to nearest even where its type has fewer bits.

    Nothing is kept: a model whose weights are larger than memory can be written with these.

    Args:
        source: a tensor of floats.
        dtype: float16, bfloat16, float8e4m3fn, float8e5m2, float32 or float64.
        name: the tensor's name; None for that of `source`.

    Raises:
        TypeError: another type.
    """

    def __init__(
        self, source: ir.TensorProtocol, dtype: ir.DataType, name: str | None = None
    ) -> None:
        for kind in (source.dtype, dtype):
            if kind not in _FLOATS:
                raise TypeError(f"tensors of {kind} are not converted")
        self.name = source.name if name is None else name
        self.doc_string = source.doc_string
        self.meta: dict[str, Any] = {}
        self._metadata_props: dict[str, str] = {}
        self._source = source
        self._dtype = dtype

    @property
    def source(self) -> ir.TensorProtocol:
        """The tensor that is converted."""
        return self._source

    @property
    def raw(self) -> ir.TensorProtocol:
        """The tensor that is converted."""
        return self._source

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]  # the protocol's is writable
        """The element type. Immutable."""
        return self._dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]  # the protocol's is writable
        """The shape. Immutable."""
        return ir.Shape(self._source.shape.numpy())

    @property
    def metadata_props(self) -> dict[str, str]:  # type: ignore[override]  # as above
        """What is serialized beside the tensor."""
        return self._metadata_props

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._source.size)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * (self._dtype.bitwidth // 8)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements, as a fresh array."""
        return _converted(self._source.numpy(), self._dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def read(self, offset: int, size: int) -> bytes:
        """Read a part of the serialized bytes.

        Raises:
            ModelError: the source cannot be read.
            ValueError: the part is not inside the tensor.
        """
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} are not inside tensor {self.name!r}")
        width = self._dtype.bitwidth // 8
        first, last = offset // width, -(-(offset + size) // width)
        array = _converted(elements(self._source, first, last), self._dtype)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        start = offset - first * width
        return little.tobytes()[start : start + size]

    def tobytes(self) -> bytes:
        """Return the bytes as ONNX serializes them: little endian."""
        return self.read(0, self.nbytes)

    def tofile(self, file: Writable) -> None:
        """Write the serialized bytes in pieces of 1 MiB, so that memory stays flat."""
        for start in range(0, self.nbytes, CHUNK):
            write_all(file, self.read(start, min(CHUNK, self.nbytes - start)))

    def __repr__(self) -> str:
        return f"ConvertedTensor<{self._dtype},{self.shape}>(source={self._source!r})"


_FLOATS = {
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
}


def elements(tensor: ir.TensorProtocol, first: int, last: int) -> np.ndarray[Any, Any]:
    """Return some of a tensor's elements in order, without the others where that can be.

    Args:
        tensor: of a type of whole bytes.
        first: index of the first element.
        last: index behind the last one.

    Raises:
        ModelError: the tensor cannot be read.
    """
    if isinstance(tensor, MappedTensor | ConvertedTensor):
        width = tensor.dtype.bitwidth // 8
        data = tensor.read(first * width, (last - first) * width)
        dtype = tensor.dtype.numpy().newbyteorder("<")
        return np.frombuffer(data, dtype)
    return tensor.numpy().reshape(-1)[first:last]


def _converted(array: np.ndarray[Any, Any], dtype: ir.DataType) -> np.ndarray[Any, Any]:
    if dtype == ir.DataType.FLOAT16 and array.dtype == np.float32:
        return _halves(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.numpy())


_BLOCK = 1 << 16
"""Elements that are converted at a time, so that what lies between stays in cache."""

_LEAST_NORMAL = np.uint32(0x38800000)
"""The bits of 2⁻¹⁴, the least normal float16, as float32."""

_ORDINARY = np.uint32(0x477FF000 - 0x38800000)
"""From there to 65520, which rounds to infinity: numbers whose exponent only has to be moved."""


def _halves(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round float32 to float16, to nearest even, with integers: twice as fast as numpy's cast.

    What is no ordinary number in float16 (subnormal, too large, infinite, NaN) is left to that.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    result = np.empty(flat.size, np.uint16)
    rows = np.empty((2, min(_BLOCK, flat.size)), np.uint32)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        bits, done = part.view(np.uint32), result[start : start + _BLOCK]
        size, half = rows[0, : part.size], rows[1, : part.size]
        np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=size)
        np.right_shift(bits, np.uint32(13), out=half)
        np.bitwise_and(half, np.uint32(1), out=half)
        half += size
        # Half a unit in the last place, less one where that is even; 112 is what exponents differ.
        half += np.uint32((1 << 12) - 1 - (112 << 23) & 0xFFFFFFFF)
        half >>= np.uint32(13)
        size -= _LEAST_NORMAL
        others = np.flatnonzero(size >= _ORDINARY)
        np.right_shift(bits, np.uint32(16), out=size)
        size &= np.uint32(0x8000)
        half |= size
        np.copyto(done, half, casting="unsafe")
        if others.size:
            with np.errstate(over="ignore", invalid="ignore"):
                done[others] = part[others].astype(np.float16).view(np.uint16)
    return result.view(np.float16).reshape(array.shape)


@dataclass(frozen=True)
class Rounding:
    """What rounding a tensor to a narrower type would do to it.

    Attributes:
        largest: the largest finite magnitude in it, as it is.
        error: of the finite elements, relative to them, both as root mean squares.
        infinite: whether an element is infinite. Not every type has infinities.
    """

    largest: float
    error: float
    infinite: bool


@np.errstate(over="ignore", invalid="ignore")
def rounding(tensor: ir.TensorProtocol, dtype: ir.DataType) -> Rounding:
    """Read a float32 tensor once, piece by piece, and measure its conversion to `dtype`."""
    largest = error = power = 0.0
    infinite = False
    for wide, size, some in _pieces(tensor):
        largest, infinite = max(largest, size), infinite or some
        difference = wide - wide.astype(dtype.numpy()).astype(np.float32)
        error += _square(difference, size)
        power += _square(wide, size)
    return Rounding(largest, math.sqrt(error / power) if power else 0.0, infinite)


def rounding_at_most(tensor: ir.TensorProtocol, dtype: ir.DataType) -> Rounding:
    """Return the same with an error that is not exceeded, some ten times as fast.

    Rounding moves a number by at most half a unit in the last place: a fixed share of it, or of the
    least normal number where it is smaller than that. Nothing is rounded to find that out. Numbers
    that are too large for the type do not count: see `Rounding.largest`.
    """
    limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]  # it has no types
    share = float(limits.eps) / 2
    largest = power = 0.0
    infinite = False
    for wide, size, some in _pieces(tensor):
        largest, infinite = max(largest, size), infinite or some
        # Elements whose squares are lost raise the bound, which is no harm.
        power += _square(wide, size)
    small = share * float(limits.tiny)
    if not power:
        return Rounding(largest, math.inf if largest else 0.0, infinite)
    return Rounding(largest, math.sqrt(share**2 + small**2 * tensor.size / power), infinite)


def _square(array: np.ndarray[Any, Any], largest: float) -> float:
    """Return the sum of squares, in float64 where float32 may not hold it."""
    wide = array.astype(np.float64) if largest > _SQUARES else array
    return float(wide @ wide)


def _pieces(tensor: ir.TensorProtocol) -> Iterator[tuple[np.ndarray[Any, Any], float, bool]]:
    """Yield the finite elements of each piece, their largest magnitude, and whether any is inf."""
    for start in range(0, tensor.size, _PIECE):
        wide = elements(tensor, start, min(start + _PIECE, tensor.size))
        size = max(float(wide.max()), -float(wide.min()))
        infinite = False
        if not math.isfinite(size):
            infinite = bool(np.isinf(wide).any())
            wide = wide[np.isfinite(wide)]
            size = float(np.abs(wide).max(initial=0))
        yield wide, size, infinite


_PIECE = 1 << 19
"""Elements that are looked at at a time."""

_SQUARES = 1e15
"""Magnitudes whose squares float32 may not hold a sum of."""
