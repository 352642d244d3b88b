"""Integers, scales and zero points of a weight, as a format stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int4.grid import Grid, pack_nibbles
from narrowpass_int4.storage.pieces import Layout, Piece
from narrowpass_int4.storage.spool import Buffer, put_nibbles

Array = np.ndarray[Any, Any]

CHANNEL_BLOCK = 128
"""The largest block of MatMulNBits where a row has one scale: it is stored for each of them."""


def stored_block(inner: int, block: int) -> int:
    """Return the block size that MatMulNBits has: a power of 2, 16 at least.

    Args:
        inner: K.
        block: elements that share a scale. Where that is no power of 2, it is all of K.
    """
    if block >= 16 and block & (block - 1) == 0:
        return block
    fits = (size for size in (128, 64, 32, 16) if inner % size == 0)
    return next(fits, CHANNEL_BLOCK)


@dataclass(frozen=True)
class Packed:
    """A quantized weight.

    Attributes:
        grid: its integers.
        layout: of the float weight.
        block: elements along K that share a scale.
        stored_block: the same as it is stored; smaller for `CHANNEL_BLOCK`.
        kind: the type of integers and zero points.
        integers: their bytes.
        scales: the bytes of scales.
        zeros: the bytes of zero points; None for a symmetric grid.
    """

    grid: Grid
    layout: Layout
    block: int
    stored_block: int
    kind: ir.DataType
    integers: Buffer
    scales: Buffer
    zeros: Buffer | None

    @property
    def blocks(self) -> int:
        """Scales of each output, as stored."""
        return -(-self.layout.inner // self.stored_block)

    def can_divide(self, least: float, most: float) -> bool:
        """Return whether float16 scales over factors from `least` to `most` keep 5 bits or more."""
        if self.grid.dtype != np.float16:
            return True
        scales = np.abs(self.scales.array.view(np.float16).astype(np.float32))
        most_scale, least_scale = float(scales.max()) / least, float(scales.min()) / most
        return most_scale <= float(np.finfo(np.float16).max) and least_scale >= 2.0**-19

    def divide_outputs(self, factors: Array) -> None:
        """Divide the weights of each output by a factor, by way of their scales.

        Args:
            factors: float32 [N]; the scales are divided before a tensor of them is asked for.
        """
        scales = self.scales.array.view(self.grid.dtype)
        if self.layout.rows or self.kind == ir.DataType.UINT8:
            table = scales.reshape(self.layout.outputs, -1)
            table[:] = table / factors[:, None]
        else:
            table = scales.reshape(-1, self.layout.outputs)
            table[:] = table / factors

    def evict(self) -> None:
        """Take the bytes out of this process's memory; see `Buffer.evict`."""
        for part in (self.integers, self.scales, self.zeros):
            if part is not None:
                part.evict()

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        zeros = 0 if self.zeros is None else self.zeros.size
        return self.integers.size + self.scales.size + zeros


class QdqPacker:
    """Stores integers in the layout of the weight, as DequantizeLinear reads them.

    Scales are [N, blocks] where the weight is [N, K], and [matrix, blocks, N] where it is [K, N];
    zero points likewise, packed as the integers are.

    Args:
        grid: the integers.
        layout: of the weight.
        block: elements along K that share a scale.
    """

    def __init__(self, grid: Grid, layout: Layout, block: int) -> None:
        self._grid, self._layout, self._block = grid, layout, block
        self._blocks = -(-layout.inner // block)
        count = layout.count * layout.outputs * layout.inner
        scales = layout.count * layout.outputs * self._blocks
        self._integers = Buffer(-(-count * grid.bits // 8))
        self._scales = Buffer(scales * grid.dtype.itemsize)
        self._zeros = None if grid.symmetric else Buffer(-(-scales * grid.bits // 8))

    def put(self, piece: Piece, integers: Array, scale: Array, zero: Array) -> None:
        """Store the integers of a piece, float32 [n, k], and their parameters, [n, blocks]."""
        layout = self._layout
        self._put(self._integers.array, piece, integers, layout.inner, piece.start)
        first = piece.start // self._block
        shape = layout.count, layout.outputs, self._blocks
        stored = self._scales.array.view(self._grid.dtype)
        if layout.rows:
            n = len(scale)
            stored.reshape(shape)[0, piece.first : piece.first + n] = scale
        else:
            n, blocks = scale.shape
            view = stored.reshape(layout.count, self._blocks, layout.outputs)
            view[piece.matrix, first : first + blocks, piece.first : piece.first + n] = scale.T
        if self._zeros is not None:
            self._put(self._zeros.array, piece, zero, self._blocks, first)

    def _put(self, target: Array, piece: Piece, numbers: Array, inner: int, start: int) -> None:
        """Store numbers [n, k] of a piece in a matrix that has `inner` of them for each output."""
        layout, grid = self._layout, self._grid
        if grid.bits == 8:
            whole = target.view(np.int8)
            flat = numbers.astype(np.int8)
        else:
            whole = target
            flat = numbers.astype(np.int8).view(np.uint8) & 15
        n, k = flat.shape
        if layout.rows:
            self._write(whole, piece.first * inner + start, flat)
            return
        base = piece.matrix * inner * layout.outputs
        turned = np.ascontiguousarray(flat.T)
        if n == layout.outputs:
            self._write(whole, base + start * n, turned)
            return
        for row in range(k):
            place = base + (start + row) * layout.outputs + piece.first
            self._write(whole, place, turned[row])

    def _write(self, target: Array, place: int, numbers: Array) -> None:
        if self._grid.bits == 4:
            put_nibbles(target, place, numbers)
        else:
            target[place : place + numbers.size] = numbers.reshape(-1)

    def packed(self) -> Packed:
        """Return what is stored."""
        parts = self._integers, self._scales, self._zeros
        kind = integer_type(self._grid)
        return Packed(self._grid, self._layout, self._block, self._block, kind, *parts)


class NbitsPacker:
    """Stores integers as MatMulNBits and GatherBlockQuantized read them: [N, blocks, bytes].

    All are unsigned; rows that end within a block are filled up. Zero points are bytes
    [N, ceil(blocks · bits / 8)], or numbers [N, blocks].

    Args:
        grid: the integers.
        layout: of the weight.
        block: elements along K that share a scale; K for one scale a row.
    """

    def __init__(self, grid: Grid, layout: Layout, block: int) -> None:
        self._grid, self._layout, self._block = grid, layout, block
        self._stored = stored_block(layout.inner, block)
        self._blocks = -(-layout.inner // self._stored)
        n = layout.count * layout.outputs
        self._bytes = self._stored * grid.bits // 8
        self._integers = Buffer(n * self._blocks * self._bytes)
        self._scales = Buffer(n * self._blocks * grid.dtype.itemsize)
        self._zeros: Buffer | None = None
        if grid.float_zeros:
            self._zeros = Buffer(n * self._blocks * grid.weight_dtype.itemsize)
        elif not grid.symmetric:
            self._zeros = Buffer(n * -(-self._blocks * grid.bits // 8))

    def put(self, piece: Piece, integers: Array, scale: Array, zero: Array) -> None:
        """Store the integers of a piece, float32 [n, k], and their parameters, [n, blocks]."""
        n, k = integers.shape
        blocks = -(-k // self._stored)
        first = piece.start // self._stored
        row = piece.matrix * self._layout.outputs + piece.first
        whole = np.full((n, blocks * self._stored), self._grid.offset, np.uint8)
        whole[:, :k] = integers + self._grid.offset
        packed = pack_nibbles(whole) if self._grid.bits == 4 else whole
        target = self._integers.array.reshape(-1, self._blocks, self._bytes)
        target[row : row + n, first : first + blocks] = packed.reshape(n, blocks, self._bytes)
        if scale.shape[1] != blocks:  # one for a row
            scale, zero = (np.repeat(each, blocks, axis=1) for each in (scale, zero))
        scales = self._scales.array.view(self._grid.dtype).reshape(-1, self._blocks)
        scales[row : row + n, first : first + blocks] = scale
        if self._zeros is None:
            return
        if self._grid.float_zeros:
            zeros = self._zeros.array.view(self._grid.weight_dtype).reshape(-1, self._blocks)
            zeros[row : row + n, first : first + blocks] = zero
            return
        stored = self._zeros.array.reshape(-1, -(-self._blocks // 2))
        for offset in range(blocks):
            place = first + offset
            shift = 4 * (place % 2)
            stored[row : row + n, place // 2] |= zero[:, offset].astype(np.uint8) << shift

    def packed(self) -> Packed:
        """Return what is stored."""
        parts = self._integers, self._scales, self._zeros
        kind = ir.DataType.UINT8
        return Packed(self._grid, self._layout, self._block, self._stored, kind, *parts)


def integer_type(grid: Grid) -> ir.DataType:
    """Return the type of the integers that DequantizeLinear reads."""
    if grid.bits == 8:
        return ir.DataType.INT8
    return ir.DataType.INT4 if grid.symmetric else ir.DataType.UINT4


class FloatPacker:
    """Stores weights as they are after quantization, float32 in the layout of the weight.

    Args:
        layout: of the weight.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._floats = Buffer(4 * layout.count * layout.outputs * layout.inner)

    def put(self, piece: Piece, weights: Array) -> None:
        """Store the weights of a piece, float32 [n, k]."""
        layout = self._layout
        whole = self._floats.array.view(np.float32)
        n, k = weights.shape
        if layout.rows:
            whole.reshape(-1, layout.inner)[piece.first : piece.first + n] = weights
            return
        shape = layout.count, layout.inner, layout.outputs
        target = whole.reshape(shape)[piece.matrix]
        target[piece.start : piece.start + k, piece.first : piece.first + n] = weights.T

    def tensor(self, shape: tuple[int, ...], name: str) -> ir.TensorProtocol:
        """Return what is stored."""
        return self._floats.tensor(ir.DataType.FLOAT, shape, name)
