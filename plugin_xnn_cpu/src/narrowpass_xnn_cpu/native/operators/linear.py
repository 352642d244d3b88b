"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Array,
    Operator,
    Range,
    checked_range,
    checked_shape,
    float_pointer,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool


class FullyConnected(Operator):
    """Rows times a constant matrix, plus a bias.

    Args:
        kernel: dense float32 [O, C], or [C, O] where `transposed`.
        bias: [O], or None.
        limits: what the output is clamped to.
        transposed: whether the kernel has its input channels first.
    """

    call = "NP_FULLY_CONNECTED"

    def __init__(
        self,
        kernel: Array,
        bias: Array | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        outputs, inputs = checked_shape(kernel.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        low, high = checked_range(limits)
        handle = ffi.new("xnn_operator_t *")
        status = lib.xnn_create_fully_connected_nc_f32(
            inputs,
            outputs,
            inputs,
            outputs,
            float_pointer(ffi, kernel, kernel.size, "a kernel"),
            float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

    def reshape(self, rows: int, pool: ThreadPool) -> None:
        """Take `rows` rows."""
        checked_shape((rows, max(self.channels, self.outputs)))
        status = self._lib.xnn_reshape_fully_connected_nc_f32(self.handle, rows, pool.handle)
        self._reshaped(status, (rows, self.channels))


class BatchMatMul(Operator):
    """Products of matrices of two tensors: [..., M, K] by [..., K, N], or [..., N, K]."""

    call = "NP_BATCH_MATMUL"

    def __init__(self, *, transpose_b: bool = False) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        handle = ffi.new("xnn_operator_t *")
        flags = lib.XNN_FLAG_TRANSPOSE_B if transpose_b else 0
        status = lib.xnn_create_batch_matrix_multiply_nc_f32(flags, handle)
        self._created(status, handle)

    def reshape(
        self,
        batch_a: Sequence[int],
        batch_b: Sequence[int],
        m: int,
        k: int,
        n: int,
        pool: ThreadPool,
    ) -> None:
        """Take batches of one rank that broadcast together, of M x K and K x N matrices."""
        a, b = checked_shape((*batch_a, m, k)), checked_shape((*batch_b, k, n))
        if len(a) != len(b):
            raise BackendError(f"batches {list(batch_a)} and {list(batch_b)} differ in rank")
        sizes = self._ffi.new("size_t[1]")
        status = self._lib.xnn_reshape_batch_matrix_multiply_nc_f32(
            self.handle, len(a) - 2, list(a[:-2]), list(b[:-2]), m, k, n, sizes, pool.handle
        )
        self._reshaped(status, (a, b))
        self.workspace = sizes[0]
