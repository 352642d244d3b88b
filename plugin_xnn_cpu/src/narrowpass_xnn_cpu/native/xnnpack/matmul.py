"""XNNPACK's fully connected operators, for all of its combinations of types."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Array, Quantized, Weight
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own.gemv import Gemv
from narrowpass_xnn_cpu.native.own.panels import PanelLayout, Panels, probe_layout
from narrowpass_xnn_cpu.native.own.row_dispatch import RowDispatch
from narrowpass_xnn_cpu.native.own.upcast import UpcastMatmul
from narrowpass_xnn_cpu.native.problems.bounds import (
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import (
    LOW,
    Quantization,
    Requantized,
    bias_over_scales,
    check_accumulator_headroom,
    checked_integers,
    checked_requantization,
    checked_scales,
)
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.target import has_float16_gemm
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.convolution import clamp_of
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator

_FUNCTIONS = {
    "int8": ("xnn_create_convert_nc_f32_qd8", "xnn_reshape_convert_nc_f32_qd8"),
    "uint8": ("xnn_create_convert_nc_f32_qdu8", "xnn_reshape_convert_nc_f32_qdu8"),
}
"""By the type of the quantized rows: to create and to reshape."""


class XnnRowQuantizer(XnnOperator):
    """Quantizes rows of float32, each by its own range; not on a tape by itself."""

    call = "NP_ROWS_TO_INT8"
    kind = "rows to int8"

    def __init__(self, dtype: str) -> None:
        super().__init__()
        creating, self._function = _FUNCTIONS[dtype]
        self._create(creating)

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Reshape for `rows` dense rows of `channels`."""
        sizes = rows, channels, channels, channels
        self._reshape(self._function, (rows, channels), *sizes, pool.handle)


@dataclass(frozen=True)
class XnnMatmulKernel:
    """One of XNNPACK's matmuls with a constant matrix.

    Attributes:
        name: of the kernel, as plans print it.
        call: its name in ``kernels.def``.
        kind: part of the names of packed weights in weights caches.
        creating: the function ``xnn_create_*``, which packs; empty where it depends on the type of
            quantized rows.
        reshaping: the function ``xnn_reshape_*``.
        bias: the dtype of the packed bias.
    """

    name: str
    call: str
    kind: str
    creating: str = ""
    reshaping: str = ""
    bias: str = "float32"

    def create(self, problem: Matmul, session: Session | None = None) -> XnnMatmul:
        """Pack the matrix, in a session of the weights cache if there is one.

        Raises:
            UnfitError: constants that XNNPACK does not support. Elements are checked when they are
                packed, not when they are found packed.
            BackendError: other invalid shapes or types, or a type without kernels for this
                processor.
        """
        return XnnMatmul(self, problem, session)


F32 = XnnMatmulKernel(
    "fully connected",
    "NP_FULLY_CONNECTED",
    "fully connected",
    "xnn_create_fully_connected_nc_f32",
    "xnn_reshape_fully_connected_nc_f32",
)
F16 = XnnMatmulKernel(
    "fully connected",
    "NP_FULLY_CONNECTED_F16",
    "fully connected f16",
    "xnn_create_fully_connected_nc_f16",
    "xnn_reshape_fully_connected_nc_f16",
    "float16",
)
BF16 = XnnMatmulKernel(
    "fully connected",
    "NP_FULLY_CONNECTED_BF16",
    "fully connected bf16",
    "xnn_create_fully_connected_nc_bf16_f32",
    "xnn_reshape_fully_connected_nc_bf16_f32",
)
INT8 = XnnMatmulKernel(
    "fully connected",
    "NP_FULLY_CONNECTED_INT8",
    "fully connected int8",
    "xnn_create_fully_connected_nc_f32_qc8w",
    "xnn_reshape_fully_connected_nc_f32_qc8w",
)
PER_TOKEN = XnnMatmulKernel(
    "fully connected", "NP_FULLY_CONNECTED_INT8_ROWS", "fully connected int8 rows"
)
S8 = XnnMatmulKernel(
    "fully connected int8",
    "NP_FULLY_CONNECTED_S8",
    "fully connected s8",
    "xnn_create_fully_connected_nc_qs8_qc8w",
    "xnn_reshape_fully_connected_nc_qs8_qc8w",
    "int32",
)
S8_F32 = XnnMatmulKernel(
    "fully connected int8", "NP_FULLY_CONNECTED_S8_F32", "fully connected s8 f32"
)
BY_DTYPE = {"float32": F32, "float16": F16, "bfloat16": BF16}
_BY_ROWS = {
    "int8": (
        "xnn_create_fully_connected_nc_qd8_f32_qc8w",
        "xnn_reshape_fully_connected_nc_qd8_f32_qc8w",
    ),
    "uint8": (
        "xnn_create_fully_connected_nc_qdu8_f32_qc8w",
        "xnn_reshape_fully_connected_nc_qdu8_f32_qc8w",
    ),
}
"""Functions for rows with scales of their own, by the type of the quantized rows."""


class XnnMatmul(RowDispatch, XnnOperator):
    """A matmul of XNNPACK with its packed matrix.

    Attributes:
        kernel: the kernel.
        channels: K, the columns of the input.
        outputs: N, the columns of the result.
    """

    def __init__(self, kernel: XnnMatmulKernel, problem: Matmul, session: Session | None) -> None:
        super().__init__()
        self.kernel, self.call, self.kind = kernel, kernel.call, kernel.kind
        self._problem = problem
        self.channels, self.outputs = problem.sizes
        self._quantizer: XnnRowQuantizer | None = None
        self._row_dtype = ""  # type of rows with scales of their own
        self._functions = kernel.creating, kernel.reshaping
        flags = self._lib.XNN_FLAG_TRANSPOSE_WEIGHTS if problem.transposed else 0
        if isinstance(problem.matrix, Weight):
            self._pack_float(problem.matrix, flags, session)
        elif not isinstance(problem.matrix, Quantized):
            raise BackendError(f"XNNPACK has no matmul of {problem.dtypes}")
        elif isinstance(problem.result, Requantized):
            self._pack_requantized(problem.matrix, problem.result, flags, session)
        else:
            self._pack_scaled(problem.matrix, flags, session)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        return self.channels, self.outputs, self.channels, self.outputs

    def _creating(self) -> Any:
        return getattr(self._lib, self._functions[0])

    def _pack_float(self, kernel: Weight, flags: int, session: Session | None) -> None:
        bias, dtype = self._problem.bias, kernel.dtype.name
        if BY_DTYPE.get(dtype) is not self.kernel:
            raise BackendError(f"XNNPACK has no matmul with a matrix of {dtype}")
        low, high = checked_range(clamp_of(self._problem.epilogue))
        if bias is not None:
            bias = bias.cast(np.dtype(self.kernel.bias))
        checked_weights(kernel, bias, self.outputs, dtype, self.kernel.bias)
        create, sizes = self._creating(), self._sizes

        def call(k: Any, b: Any, cache: Any, handle: Any) -> int:
            return int(create(*sizes, k, b, low, high, flags | self._flags, cache, handle))

        self._packed(session, flags, kernel, bias, call)

    def _pack_requantized(
        self, matrix: Quantized, requantized: Requantized, flags: int, session: Session | None
    ) -> None:
        requantized.check()
        integers, scales = self._constants(matrix, "int32")
        source, result, (low, high) = requantized.input, requantized.output, requantized.limits
        create, sizes = self._creating(), self._sizes

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any) -> int:
            rest = result.zero_point, result.scale, low, high, flags | self._flags, cache, handle
            return int(create(*sizes, source.zero_point, source.scale, s, k, b, *rest))

        parameters = (flags, source, result.scale.hex())
        others = [checked_requantization(scales, requantized)]
        self._packed(session, parameters, integers, self._problem.bias, call, others)

    def _pack_scaled(self, matrix: Quantized, flags: int, session: Session | None) -> None:
        """Pack an int8 matrix for float32 results, of float32 or int8 rows."""
        problem, operand = self._problem, self._problem.operand
        parameters: object = flags
        if isinstance(operand, PerToken):
            check_accumulator_headroom(self.channels, "channels")
        elif isinstance(operand, Quantization):
            operand.check()
        low, high = checked_range(clamp_of(problem.epilogue))
        integers, scales = self._constants(matrix, "float32")
        bias, others = problem.bias, [scales]
        if operand is None:
            # XNNPACK multiplies the sum of accumulator and bias by the scale.
            bias = None if bias is None else bias_over_scales(bias, scales)
        else:
            unsigned = operand.unsigned if isinstance(operand, PerToken) else None
            unsigned = has_unsigned_rows() if unsigned is None else unsigned
            self._row_dtype = "uint8" if unsigned else "int8"
            self._functions = _BY_ROWS[self._row_dtype]
            parameters = (flags, self._row_dtype)
            # XNNPACK's cache key has neither scales nor bias; our names of blocks need both.
            others, bias = [scales] if bias is None else [scales, bias], None
            if isinstance(operand, PerToken):
                self._quantizer = XnnRowQuantizer(self._row_dtype)
        create, sizes = self._creating(), self._sizes

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any, other: Any = None) -> int:
            if other is None:
                other = b if operand is None else self._ffi.NULL
            return int(create(*sizes, s, k, other, low, high, flags | self._flags, cache, handle))

        self._packed(session, parameters, integers, bias, call, others)

    def _constants(self, matrix: Quantized, bias: str) -> tuple[Weight, Weight]:
        integers = checked_integers(matrix.integers)
        scales = checked_scales(matrix, self.outputs, 1 if self._problem.transposed else 0)
        checked_weights(integers, self._problem.bias, self.outputs, "int8", bias)
        return integers, scales

    def panels(self) -> Panels | None:
        """See `RowDispatch.panels`."""
        kind = {F32: "float32", F16: "float16", INT8: "int8"}.get(self.kernel, "")
        layout = _layout(kind, self.outputs) if kind and self.block is not None else None
        return Panels.from_xnnpack(self.block, self._session, layout, self.channels, self.outputs)

    def _default_epilogue(self) -> Epilogue:
        return self._problem.epilogue

    def for_rows(self, rows: int, epilogue: Epilogue) -> XnnMatmul | Gemv | UpcastMatmul:
        """See `RowDispatch.for_rows`; an operator that quantizes rows dispatches after that."""
        return self if self._quantizer is not None else super().for_rows(rows, epilogue)

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Reshape for `rows` rows; return the parameters, None where there are none."""
        shape = rows, self.channels
        checked_shape((rows, max(self.channels, self.outputs)))
        _, function = self._functions
        if not self._row_dtype:
            self._reshape(function, shape, rows, pool.handle)
            self.params = self._narrow(rows) if self.kernel in (F16, BF16) else None
            return self.params
        scratch = self._ffi.new("size_t *")
        self._reshape(function, shape, rows, scratch, pool.handle)
        operand = self._problem.operand
        if isinstance(operand, Quantization):
            self.params = self._static_rows(rows, operand, scratch[0])
        elif self._quantizer is not None:
            self._quantizer.reshape(*shape, pool)
            self.params = self._quantized_rows(rows, self._quantizer, scratch[0])
        return self.params

    def _narrow(self, rows: int) -> Any:
        """Return the parameters of a matmul whose rows are rounded to 16 bits first."""
        inputs, results = rows * self.channels, rows * self.outputs
        offset = _aligned(2 * inputs + self._lib.XNN_EXTRA_BYTES)
        self.workspace = offset + (2 * results if self.kernel is F16 else 0)
        return self._ffi.new("struct np_converted_params *", (inputs, results, offset))

    def _quantized_rows(self, rows: int, quantizer: XnnRowQuantizer, scratch: int) -> Any:
        """Return the parameters of a matmul with dynamic per-token quantization of its rows."""
        ffi, lib = self._ffi, self._lib
        # Kernels over-read rows, and quantization parameters after those of the last row.
        ranges = _aligned(rows * self.channels + lib.XNN_EXTRA_BYTES)
        count = rows + lib.XNN_EXTRA_QUANTIZATION_PARAMS
        odd = _aligned(ranges + count * ffi.sizeof("struct xnn_quantization_params"))
        rest = _aligned(odd + rows)
        self.workspace = rest + scratch
        sizes = self._row_dtype == "uint8", rows, self.channels, self.outputs
        fields = quantizer.handle, *sizes, ranges, odd, rest
        return ffi.new("struct np_dynamic_int8_params *", fields)

    def _static_rows(self, rows: int, given: Quantization, scratch: int) -> Any:
        """Return the parameters of a matmul whose rows are quantized with one static scale."""
        ffi, lib = self._ffi, self._lib
        unsigned = self._row_dtype == "uint8"
        # Kernels over-read quantization parameters after those of the last row.
        ranges = np.empty(
            rows + lib.XNN_EXTRA_QUANTIZATION_PARAMS, [("zero", np.int32), ("scale", np.float32)]
        )
        ranges["zero"] = given.zero_point - (LOW if unsigned else 0)
        ranges["scale"] = given.scale
        self._ranges = ffi.from_buffer("struct xnn_quantization_params[]", ranges)
        count = rows * self.channels
        offset = _aligned(count + lib.XNN_EXTRA_BYTES) if unsigned else 0
        self.workspace = offset + scratch
        fields = count, self._ranges, unsigned, offset
        return ffi.new("struct np_s8_f32_params *", fields)


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


@functools.cache
def has_unsigned_rows() -> bool:
    """Return whether XNNPACK has kernels for u8 rows (qdu8) on this processor.

    It has them for VNNI, which multiplies unsigned by signed bytes; they are three times as fast as
    those for s8 rows (qd8) there.
    """
    ffi, lib = extension().ffi, extension().lib
    handle, scale = ffi.new("xnn_operator_t *"), ffi.new("float *", 1.0)
    sizes, limits = (1, 1, 1, 1), (-math.inf, math.inf)
    create, weight = lib.xnn_create_fully_connected_nc_qdu8_f32_qc8w, ffi.new("int8_t *", 1)
    status = create(*sizes, scale, weight, ffi.NULL, *limits, 0, ffi.NULL, handle)
    if status != lib.xnn_status_success:
        return False
    lib.xnn_delete_operator(handle[0])
    return True


def reads_panels(dtype: str, outputs: int) -> bool:
    """Return whether the GEMV kernel reads the matrices of this type that XNNPACK packs."""
    return (dtype != "float16" or has_float16_gemm()) and _layout(dtype, outputs) is not None


@functools.cache
def _layout(kind: str, outputs: int) -> PanelLayout | None:
    """Return XNNPACK's layout for so many outputs; None if our kernels do not read it."""

    def pack(matrix: Array, bias: Array, scales: Array, session: Session) -> Block | None:
        added = Weight.of(bias)
        if kind in BY_DTYPE:
            kernel = Weight.of(matrix.astype(kind))
            return BY_DTYPE[kind].create(Matmul(kernel, added), session).block
        quantized = Quantized(Weight.of(matrix), Weight.of(scales), None, 0)
        return INT8.create(Matmul(quantized, added), session).block

    return probe_layout(kind, outputs, pack)


_BY_DTYPES = {
    "float32 x float32": F32,
    "float32 x float16": F16,
    "float32 x bfloat16": BF16,
    "float32 x int8": INT8,
    "float32 per token x int8": PER_TOKEN,
    "int8 x int8 -> int8": S8,
    "int8 x int8 -> float32": S8_F32,
}


def create(problem: Matmul, session: Session | None = None) -> XnnMatmul:
    """Return XNNPACK's operator of a matmul; see `XnnMatmulKernel.create`."""
    kernel = _BY_DTYPES.get(problem.dtypes)
    if kernel is None:
        raise BackendError(f"XNNPACK has no matmul of {problem.dtypes}")
    return kernel.create(problem, session)
