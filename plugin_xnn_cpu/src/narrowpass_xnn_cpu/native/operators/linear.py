"""Products of matrices."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Operator,
    Range,
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.few_rows import FewRows, clamping
from narrowpass_xnn_cpu.native.operators.panels import Fields, Layout, layout_of
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.entry import Block
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Weight


class FullyConnected(Operator):
    """Rows of float32 times a constant matrix, plus a bias.

    Args:
        kernel: [O, C], or [C, O] where `transposed`; of the type that is computed with: float32,
            float16 or bfloat16. Narrow products round their rows; the sums are float32.
        bias: float32 [O], or None.
        limits: what the output is clamped to.
        transposed: whether the kernel has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid, or a type that this processor has no kernels for.
    """

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        outputs, inputs = checked_shape(kernel.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        self._limits = limits
        self._few: FewRows | None = None
        self.dtype = kernel.dtype.name
        if self.dtype not in _KINDS:
            raise BackendError(f"there are no products of matrices of {self.dtype}")
        self.call, bias_dtype, creating, reshaping = _KINDS[self.dtype]
        self._reshape = getattr(lib, reshaping)
        create = getattr(lib, creating)
        low, high = checked_range(limits)
        if bias is not None:
            bias = bias.cast(np.dtype(bias_dtype))
        checked_weights(kernel, bias, outputs, self.dtype, bias_dtype)
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        sizes = inputs, outputs, inputs, outputs
        self._packed(
            session,
            flags,
            kernel,
            bias,
            lambda k, b, cache, made: create(
                *sizes, k, b, low, high, flags | self._flags, cache, made
            ),
        )

    def for_few_rows(self, epilogue: Fields | None = None) -> FewRows | None:
        """Give the operator for up to `MOST_ROWS` rows of the same matrix, if there is one."""
        if self._few is None and self.block is not None:
            known = self.dtype in ("float32", "float16")
            layout = _layout(self.dtype, self.outputs) if known else None
            sizes = self.channels, self.outputs
            self._few = FewRows.of(
                self.block, self._session, layout, *sizes, epilogue or clamping(self._limits)
            )
        return self._few

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of a product that is computed narrow."""
        checked_shape((rows, max(self.channels, self.outputs)))
        self._reshaped(self._reshape(self.handle, rows, pool.handle), (rows, self.channels))
        if self.dtype == "float32":
            return None
        given, made = rows * self.channels, rows * self.outputs
        offset = -(-(2 * given + self._lib.XNN_EXTRA_BYTES) // 64) * 64
        self.workspace = offset + (2 * made if self.dtype == "float16" else 0)
        return self._ffi.new("struct np_converted_params *", (given, made, offset))


_KINDS = {
    "float32": (
        "NP_FULLY_CONNECTED",
        "float32",
        "xnn_create_fully_connected_nc_f32",
        "xnn_reshape_fully_connected_nc_f32",
    ),
    "float16": (
        "NP_FULLY_CONNECTED_F16",
        "float16",
        "xnn_create_fully_connected_nc_f16",
        "xnn_reshape_fully_connected_nc_f16",
    ),
    "bfloat16": (
        "NP_FULLY_CONNECTED_BF16",
        "float32",
        "xnn_create_fully_connected_nc_bf16_f32",
        "xnn_reshape_fully_connected_nc_bf16_f32",
    ),
}
"""By the type of the matrix: the call of the tape, the type of the bias, and two functions."""


@functools.cache
def has_half_matmul() -> bool:
    """Return whether XNNPACK has a GEMM of float16 here: on x86-64 it takes AVX2 and F16C."""
    ffi, lib = extension().ffi, extension().lib
    handle = ffi.new("xnn_operator_t *")
    kernel, null = ffi.new("uint16_t[1]"), ffi.NULL
    status = lib.xnn_create_fully_connected_nc_f16(
        1, 1, 1, 1, kernel, null, -math.inf, math.inf, 0, null, handle
    )
    if not status:
        lib.xnn_delete_operator(handle[0])
    return bool(status != lib.xnn_status_unsupported_hardware)


def reads_panels(dtype: str, outputs: int) -> bool:
    """Tell whether a packed matrix of this type can be multiplied with few rows of float32."""
    return (dtype != "float16" or has_half_matmul()) and _layout(dtype, outputs) is not None


@functools.cache
def _layout(dtype: str, outputs: int) -> Layout | None:
    def pack(matrix: Array, bias: Array, _: Array, session: Session) -> Block | None:
        kernel = Weight.of(matrix.astype(dtype))
        return FullyConnected(kernel, Weight.of(bias), session=session).block

    return layout_of(dtype, outputs, pack)
