"""XNNPACK's products of int8 rows with constant matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.operators.base import (
    Operator,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.int8 import (
    LOW,
    Quantization,
    Requantized,
    checked_constants,
    fitting,
)
from narrowpass_xnn_cpu.native.operators.quantized import row_kind
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session


class FullyConnectedS8(Operator):
    """Rows of int8 times a constant matrix of int8, plus a bias, as int8.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; scales of the outputs.
        bias: int32 [O], or None.
        requantized: of input and output.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that XNNPACK does not compute rightly with.
    """

    call = "NP_FULLY_CONNECTED_S8"

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        requantized: Requantized,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        requantized.check()
        outputs, inputs = checked_shape(matrix.integers.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        integers, scales = checked_constants(matrix, outputs, 1 if transposed else 0)
        checked_weights(integers, bias, outputs, "int8", "int32")
        given, made, (low, high) = requantized.given, requantized.made, requantized.limits
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        create = lib.xnn_create_fully_connected_nc_qs8_qc8w
        sizes = inputs, outputs, inputs, outputs

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any) -> int:
            ends = made.zero_point, made.scale, low, high, flags | self._flags, cache, handle
            return int(create(*sizes, given.zero_point, given.scale, s, k, b, *ends))

        parameters = (flags, given, made.scale.hex())
        self._packed(session, parameters, integers, bias, call, [fitting(scales, requantized)])

    def reshape(self, rows: int, pool: ThreadPool) -> None:
        """Take `rows` rows."""
        checked_shape((rows, max(self.channels, self.outputs)))
        status = self._lib.xnn_reshape_fully_connected_nc_qs8_qc8w(self.handle, rows, pool.handle)
        self._reshaped(status, (rows, self.channels))


class FullyConnectedS8F32(Operator):
    """Rows of int8, all with one scale, times a constant matrix of int8, plus a bias, as float32.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; scales of the outputs.
        bias: float32 [O], or None.
        given: of the rows.
        limits: what the output is clamped to.
        transposed: whether the matrix has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that XNNPACK does not compute rightly with.
    """

    call = "NP_FULLY_CONNECTED_S8_F32"

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        given: Quantization,
        limits: tuple[float, float],
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        given.check()
        outputs, inputs = checked_shape(matrix.integers.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        self._given = given
        integers, scales = checked_constants(matrix, outputs, 1 if transposed else 0)
        checked_weights(integers, bias, outputs, "int8", "float32")
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        self._rows = row_kind()
        create = getattr(lib, self._rows.create)
        sizes = inputs, outputs, inputs, outputs
        null = self._ffi.NULL

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any, added: Any = null) -> int:
            return int(create(*sizes, s, k, added, *limits, flags | self._flags, cache, handle))

        # XNNPACK leaves scales and bias out of its key: they name the block, as what is packed too.
        others = [scales] if bias is None else [scales, bias]
        self._packed(session, (flags, self._rows.dtype), integers, None, call, others)

    def reshape(self, rows: int, pool: ThreadPool) -> None:
        """Take `rows` rows."""
        checked_shape((rows, max(self.channels, self.outputs)))
        ffi, lib = self._ffi, self._lib
        sizes = ffi.new("size_t *")
        reshape = getattr(lib, self._rows.reshape)
        self._reshaped(reshape(self.handle, rows, sizes, pool.handle), (rows, self.channels))
        unsigned = self._rows.dtype == "uint8"
        zero_point = self._given.zero_point - (LOW if unsigned else 0)
        # Kernels read ranges of rows that are not there.
        ranges = np.empty(
            rows + lib.XNN_EXTRA_QUANTIZATION_PARAMS, [("zero", np.int32), ("scale", np.float32)]
        )
        ranges["zero"], ranges["scale"] = zero_point, self._given.scale
        self._ranges = ffi.from_buffer("struct xnn_quantization_params[]", ranges)
        count = rows * self.channels
        offset = -(-(count + lib.XNN_EXTRA_BYTES) // 64) * 64 if unsigned else 0
        self.workspace = offset + sizes[0]
        fields = count, self._ranges, unsigned, offset
        self.params = ffi.new("struct np_s8_f32_params *", fields)
