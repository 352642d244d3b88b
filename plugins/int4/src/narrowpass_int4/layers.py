"""One weight at a time: read in pieces, quantized, stored, and what it lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from narrowpass import Histogram
from narrowpass_int4.grid import Grid
from narrowpass_int4.methods.hqq import half_quadratic
from narrowpass_int4.methods.search import least_squares, round_to_nearest
from narrowpass_int4.storage.packing import FloatPacker, Packed
from narrowpass_int4.storage.pieces import Layout, Piece, Survey, pieces

Array = np.ndarray[Any, Any]

BINS = 48
"""Bins of the histogram of a weight."""

AT_ONCE = 1 << 17
"""Elements whose parameters are searched at a time, so that they stay in cache."""

Choose = Callable[[Array, int], tuple[Array, Array, Array]]
"""Quantizes rows, float32 [n, k], whose first element has a number among the K of its output.

Returns integers [n, k], scales [n, blocks] and zero points [n, blocks], all float32."""


class Packer(Protocol):
    """Stores integers in a format."""

    def put(self, piece: Piece, integers: Array, scale: Array, zero: Array) -> None:
        """Store a piece."""

    def packed(self) -> Packed:
        """Return what is stored."""


@dataclass
class Loss:
    """What quantization did to a weight.

    Attributes:
        error: the sum of squares of what the weights lost.
        power: of the weights.
        output_error: the same of the outputs on data; None without data.
        output_power: of the outputs on data.
        histogram: of the weights, with the range that the scales represent.
    """

    error: float = 0.0
    power: float = 0.0
    output_error: float | None = None
    output_power: float = 0.0
    histogram: Histogram | None = None
    low: float = field(default=0.0, repr=False)
    high: float = field(default=0.0, repr=False)

    @property
    def sqnr(self) -> float:
        """The ratio of signal to quantization noise of the weights, in dB."""
        if self.error == 0:
            return math.inf
        return 10 * math.log10(self.power / self.error) if self.power else -math.inf

    @property
    def relative(self) -> float:
        """The error over the signal, as root mean squares: of outputs, else of weights."""
        error, power = self.error, self.power
        if self.output_error is not None:
            error, power = self.output_error, self.output_power
        return math.sqrt(error / power) if power else 0.0


def choice(method: str, grid: Grid, block: int, importance: Array | None = None) -> Choose:
    """Return what quantizes rows by a method that needs no data.

    Args:
        method: ``rtn``, ``mse`` or ``hqq``.
        grid: the integers.
        block: elements that share a scale.
        importance: float32 [K], of each column for ``mse``; None for equal ones.
    """

    def search(blocks: Array, weights: Array | None, mask: Array | None) -> tuple[Array, Array]:
        if method == "rtn":
            return round_to_nearest(blocks, grid)
        if method == "hqq":
            return half_quadratic(blocks, grid, mask)
        return least_squares(blocks, grid, weights)

    def choose(rows: Array, start: int) -> tuple[Array, Array, Array]:
        k = rows.shape[1]
        blocks = to_blocks(rows, block)
        mask = None  # 0 for what fills up the last block
        if blocks.shape[1] * block != k:
            mask = to_blocks(np.ones((1, k), np.float32), block)[0]
        weights = mask
        if importance is not None:
            weights = to_blocks(importance[None, start : start + k], block)[0]
        scale = np.empty(blocks.shape[:2], np.float32)
        zero = np.empty_like(scale)
        integers = np.empty_like(blocks)
        step = max(1, AT_ONCE // blocks[0].size)
        for row in range(0, len(blocks), step):
            part = blocks[row : row + step]
            scale[row : row + step], zero[row : row + step] = search(part, weights, mask)
            found = scale[row : row + step], zero[row : row + step]
            integers[row : row + step] = grid.quantize(part, *found)
        return integers.reshape(len(blocks), -1)[:, :k], scale, zero

    return choose


def to_blocks(rows: Array, block: int) -> Array:
    """Return rows [n, k] as blocks [n, blocks, block]; the last is filled up with zeros."""
    n, k = rows.shape
    count = -(-k // block)
    if count * block != k:
        rows = np.pad(rows, [(0, 0), (0, count * block - k)])
    return rows.reshape(n, count, block)


def quantize(
    tensor: ir.TensorProtocol,
    layout: Layout,
    grid: Grid,
    block: int,
    choose: Choose,
    packer: Packer,
    seen: Survey,
    hessian: Array | None = None,
    floats: FloatPacker | None = None,
    factors: Array | None = None,
    turn: Array | None = None,
) -> tuple[Packed, Loss]:
    """Quantize a weight; memory is that of a piece, or of the rows that a method asks for.

    Args:
        tensor: the weight.
        layout: of it.
        grid: the integers.
        block: elements along K that share a scale.
        choose: the method.
        packer: where integers go.
        seen: of the tensor, by `survey`.
        hessian: float [K, K], of what the weight is multiplied with, where there is data.
        floats: where weights go as they are after quantization, if anywhere.
        factors: float32 [K], that the weights are multiplied by before they are quantized. What
            `floats` receives, and the loss, are of weights that are divided by them again.
        turn: float32 [K, K], that rows are multiplied with first: see `compensation`. The loss is
            that of the turned rows.
    """
    loss, counts = Loss(), np.zeros(BINS, np.int64)
    edges = _edges(seen)
    if hessian is not None:
        loss.output_error = 0.0
    for piece in pieces(tensor, layout, block, whole=hessian is not None):
        rows = piece.weights if turn is None else piece.weights @ turn
        k = rows.shape[1]
        share = None if factors is None else factors[piece.start : piece.start + k]
        integers, scale, zero = choose(rows if share is None else rows * share, piece.start)
        packer.put(piece, integers, scale, zero)
        values = grid.dequantize(to_blocks(integers, block), scale, zero)
        values = values.reshape(len(rows), -1)[:, :k]
        if share is not None:
            values = values / share
        if floats is not None:
            floats.put(piece, values)
        _measure(loss, rows, values, hessian)
        _see_range(loss, grid, scale, zero)
        if edges is not None:
            counts += np.histogram(rows[rows != 0], BINS, edges)[0]
    if edges is not None:
        loss.histogram = Histogram(
            *edges, tuple(int(count) for count in counts), seen.zeros, _clipping(loss)
        )
    return packer.packed(), loss


def _measure(loss: Loss, rows: Array, values: Array, hessian: Array | None) -> None:
    """Add what the weights of a piece lost."""
    error = values - rows
    loss.error += float(np.einsum("nk,nk->", error, error, dtype=np.float64))
    loss.power += float(np.einsum("nk,nk->", rows, rows, dtype=np.float64))
    if hessian is not None:
        loss.output_error = (loss.output_error or 0.0) + output_power(error, hessian)
        loss.output_power += output_power(rows, hessian)


def _see_range(loss: Loss, grid: Grid, scale: Array, zero: Array) -> None:
    """Add the range that scales and zero points represent."""
    first, last = ((end - zero) * scale for end in (grid.low, grid.high))
    loss.low = min(loss.low, float(first.min()), float(last.min()))
    loss.high = max(loss.high, float(first.max()), float(last.max()))


def output_power(rows: Array, hessian: Array) -> float:
    """Return the sum of squares of ``rows · X`` from ``X · Xᵀ``."""
    return max(0.0, float(output_powers(rows, hessian).sum()))


def output_powers(rows: Array, hessian: Array) -> Array:
    """Return the same of each row, float64 [n], from matmuls in float32."""
    narrow = np.asarray(rows, np.float32)
    reached = narrow @ np.asarray(hessian, np.float32)
    found: Array = np.einsum("nk,nk->n", reached, narrow, dtype=np.float64)
    return np.maximum(found, 0.0)


def _edges(seen: Survey) -> tuple[float, float] | None:
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    return (low, high) if np.float32(high) - np.float32(low) > np.finfo(np.float32).tiny else None


def _clipping(loss: Loss) -> tuple[float, float] | None:
    return (loss.low, loss.high) if loss.low < loss.high else None
