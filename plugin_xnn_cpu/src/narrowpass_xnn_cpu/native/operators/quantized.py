"""Products with matrices of int8."""

from __future__ import annotations

import dataclasses

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Operator,
    Range,
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Quantized, Weight, digest

WEIGHTS_RANGE = (-127, 127)
"""Weights that XNNPACK's kernels are written for."""

SMALLEST_SCALE = 2.0**-126
"""The least normal float32: XNNPACK takes no smaller scale."""


class UnfitError(BackendError):
    """Constants that XNNPACK would compute wrongly with, and does not refuse."""


class FullyConnectedInt8(Operator):
    """Rows of float32 times a constant matrix of int8 with scales, plus a bias.

    The sums are float32, of rows and integers; they are scaled at the end.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; its scales are of the outputs.
        bias: float32 [O], or None.
        limits: what the output is clamped to.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: integers, zero points, scales or a bias that XNNPACK does not compute rightly
            with. They are looked at when they are packed: what is found packed was fit.
        BackendError: what is not valid otherwise.
    """

    call = "NP_FULLY_CONNECTED_INT8"

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        outputs, inputs = checked_shape(matrix.integers.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        low, high = checked_range(limits)
        kernel, scales = _checked_integers(matrix.integers), _scales(matrix, outputs, transposed)
        # The sum is scaled as a whole, with the bias in it.
        bias = None if bias is None else _divided(bias, scales)
        checked_weights(kernel, bias, outputs, "int8", "float32")
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        sizes = inputs, outputs, inputs, outputs
        create = lib.xnn_create_fully_connected_nc_f32_qc8w
        self._packed(
            session,
            flags,
            kernel,
            bias,
            lambda k, b, cache, made, s: create(*sizes, s, k, b, low, high, flags, cache, made),
            [scales],
        )

    def reshape(self, rows: int, pool: ThreadPool) -> None:
        """Take `rows` rows."""
        checked_shape((rows, max(self.channels, self.outputs)))
        status = self._lib.xnn_reshape_fully_connected_nc_f32_qc8w(self.handle, rows, pool.handle)
        self._reshaped(status, (rows, self.channels))


def _checked_integers(weight: Weight) -> Weight:
    """Give integers that are looked at when they are made; of the same name."""

    def make() -> Array:
        array = np.ascontiguousarray(weight.make())
        if array.size and array.min() < WEIGHTS_RANGE[0]:
            raise UnfitError("a weight is -128")
        return array

    return dataclasses.replace(weight, make=make)


def _scales(matrix: Quantized, outputs: int, transposed: bool) -> Weight:
    """Give a scale for each output; looked at, with the zero points, when they are made."""
    scale, zero = matrix.scale, matrix.zero
    if scale.dtype != np.float32:
        raise UnfitError(f"its scales are {scale.dtype.name}")
    if scale.size not in (1, outputs) or (zero is not None and zero.size not in (1, scale.size)):
        raise UnfitError(f"it has {scale.size} scales for {outputs} outputs")
    if scale.size != 1 and matrix.axis != (1 if transposed else 0):
        raise UnfitError("its scales are of its input channels")

    def make() -> Array:
        if zero is not None and zero.array().any():
            raise UnfitError("a zero point is not 0")
        array = scale.array().reshape(-1)
        if not (np.isfinite(array) & (array >= SMALLEST_SCALE)).all():
            raise UnfitError("a scale is not a positive, finite, normal number")
        return np.repeat(array, outputs) if array.size != outputs else array

    parts = [part.identity for part in (scale, zero) if part is not None]
    identity = digest("scales", outputs, *parts) if all(parts) else ""
    return Weight((outputs,), scale.dtype, identity, make, scale.drop)


def _divided(bias: Weight, scales: Weight) -> Weight:
    """Give a bias as what is added before the sum is scaled."""

    def make() -> Array:
        array, divisors = bias.array(), scales.array()
        with np.errstate(over="ignore"):
            result: Array = array / divisors
        if not np.isfinite(result[np.isfinite(array)]).all():
            raise UnfitError("a bias is too large for its scale")
        return result

    parts = bias.identity, scales.identity
    identity = digest("divided", *parts) if all(parts) else ""
    return Weight(bias.shape, bias.dtype, identity, make, bias.drop)
