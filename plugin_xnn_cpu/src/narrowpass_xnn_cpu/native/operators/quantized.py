"""Products with matrices of int8."""

from __future__ import annotations

import dataclasses
import functools
import math
import platform
from dataclasses import dataclass
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
from narrowpass_xnn_cpu.native.operators.few_rows import MOST_ROWS, FewRows, clamping
from narrowpass_xnn_cpu.native.operators.panels import Fields, Layout, layout_of
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.entry import Block
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Quantized, Weight, digest

LEAST_WEIGHT = -128 if platform.machine().lower() in ("x86_64", "amd64") else -127
"""The least weight that kernels multiply exactly.

XNNPACK's kernels for x86, and ours, widen products to 32 bits. Some of those for ARM add two
products of bytes in 16 bits, of which 2 · 128 · 128 is one too many."""

SMALLEST_SCALE = 2.0**-126
"""The least normal float32: XNNPACK takes no smaller scale."""


class UnfitError(BackendError):
    """Constants that XNNPACK would compute wrongly with, and does not refuse."""


MOST_CHANNELS = (2**31 - 1) // (255 * 128)
"""Input channels up to which sums of quantized rows stay below 2³¹: 65,793."""


class FullyConnectedInt8(Operator):
    """Rows of float32 times a constant matrix of int8 with scales, plus a bias.

    With float rows, the sums are float32, of rows and integers; they are scaled at the end. With
    rows of int8, each row is quantized by its own range, 0 included, and the sums are exact; a row
    with an element that is NaN, infinite, or of 2¹²⁷ and more gives NaN.

    Args:
        matrix: [O, C], or [C, O] where `transposed`; its scales are of the outputs.
        bias: float32 [O], or None.
        limits: what the output is clamped to.
        transposed: whether the matrix has its input channels first.
        rows_too: whether rows are quantized.
        unsigned: whether to integers from 0 to 255; None for what is faster on this processor.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: integers, zero points, scales or a bias that XNNPACK does not compute rightly
            with. They are looked at when they are packed: what is found packed was fit.
        BackendError: what is not valid otherwise.
    """

    def __init__(
        self,
        matrix: Quantized,
        bias: Weight | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
        rows_too: bool = False,
        unsigned: bool | None = None,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        outputs, inputs = checked_shape(matrix.integers.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        self.call = "NP_FULLY_CONNECTED_INT8_ROWS" if rows_too else "NP_FULLY_CONNECTED_INT8"
        if rows_too and inputs > MOST_CHANNELS:
            raise UnfitError(f"sums over {inputs} channels may not fit 32 bits")
        low, high = checked_range(limits)
        kernel = checked_integers(matrix.integers)
        scales = checked_scales(matrix, outputs, 1 if transposed else 0)
        checked_weights(kernel, bias, outputs, "int8", "float32")
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        sizes = inputs, outputs, inputs, outputs
        others = [scales]
        self._rows: _RowsToInt8 | None = None
        if rows_too:
            kind = row_kind(unsigned)
            self._rows = _RowsToInt8(kind)
            create = getattr(lib, kind.create)
            if bias is not None:
                others.append(bias)  # XNNPACK leaves it out of its key
                bias = None
        else:
            create = lib.xnn_create_fully_connected_nc_f32_qc8w
            # The sum is scaled as a whole, with the bias in it.
            bias = None if bias is None else _divided(bias, scales)

        def call(k: Any, b: Any, cache: Any, made: Any, s: Any, other: Any = None) -> int:
            added = b if other is None else other
            return int(create(*sizes, s, k, added, low, high, flags | self._flags, cache, made))

        parameters = flags if self._rows is None else (flags, self._rows.kind.dtype)
        self._packed(session, parameters, kernel, bias, call, others)
        self._limits = limits
        self._few: FewRows | None = None

    @property
    def quantizes_rows(self) -> bool:
        """Whether rows are quantized."""
        return self._rows is not None

    def for_few_rows(self, epilogue: Fields | None = None) -> FewRows | None:
        """Give the operator for up to `MOST_ROWS` rows of the same matrix, if there is one.

        `epilogue` is what becomes of sums; None to clamp them as this operator does.

        Rows of float32 are quantized before they come to it, where this operator does that.
        """
        if self._few is None and self.block is not None:
            kind = None if self._rows is None else self._rows.kind.dtype
            layout, sizes = _layout(kind, self.outputs), (self.channels, self.outputs)
            self._few = FewRows.of(
                self.block, self._session, layout, *sizes, epilogue or clamping(self._limits)
            )
        return self._few

    def panels(self) -> tuple[Block, object, Layout] | None:
        """Give the packed matrix, what keeps it there and how it lies, if that is known.

        For rows of float32 that are multiplied with weights as they are.
        """
        if self.quantizes_rows or self.block is None:
            return None
        layout = _layout(None, self.outputs)
        if layout is None or not layout.holds(self.block, self.channels, self.outputs):
            return None
        return self.block, self._session, layout

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of a product whose rows are quantized."""
        checked_shape((rows, max(self.channels, self.outputs)))
        ffi, lib = self._ffi, self._lib
        shape = rows, self.channels
        if self._rows is None:
            status = lib.xnn_reshape_fully_connected_nc_f32_qc8w(self.handle, rows, pool.handle)
            self._reshaped(status, shape)
            return None
        scratch = ffi.new("size_t *")
        reshape = getattr(lib, self._rows.kind.reshape)
        self._reshaped(reshape(self.handle, rows, scratch, pool.handle), shape)
        self._rows.reshape(*shape, pool)
        # Kernels read some bytes beyond the rows, and ranges of rows that are not there.
        ranges = _aligned(rows * self.channels + lib.XNN_EXTRA_BYTES)
        count = rows + lib.XNN_EXTRA_QUANTIZATION_PARAMS
        odd = _aligned(ranges + count * ffi.sizeof("struct xnn_quantization_params"))
        rest = _aligned(odd + rows)
        self.workspace = rest + scratch[0]
        unsigned = self._rows.kind.dtype == "uint8"
        few = self.for_few_rows() if rows <= MOST_ROWS else None
        inner = ffi.NULL if few is None else few.reshape(rows, pool)
        fields = self._rows.handle, unsigned, *shape, self.outputs, ranges, odd, rest, inner
        return ffi.new("struct np_dynamic_int8_params *", fields)


@functools.cache
def _layout(rows: str | None, outputs: int) -> Layout | None:
    """Give how a matrix lies, by the type that its rows are quantized to; None for float32."""
    if rows == "int8":
        return None

    def pack(matrix: Array, bias: Array, scales: Array, session: Session) -> Block | None:
        scale = Weight.of(scales)
        quantized = Quantized(Weight.of(matrix), scale, None, 0)
        made = FullyConnectedInt8(
            quantized, Weight.of(bias), rows_too=rows is not None, session=session
        )
        return made.block

    return layout_of("int8" if rows is None else "int8 rows", outputs, pack)


@dataclass(frozen=True)
class RowKind:
    """Functions of XNNPACK for rows of one type."""

    dtype: str
    create: str
    reshape: str
    create_conversion: str
    reshape_conversion: str


_ROWS = {
    False: RowKind(
        "int8",
        "xnn_create_fully_connected_nc_qd8_f32_qc8w",
        "xnn_reshape_fully_connected_nc_qd8_f32_qc8w",
        "xnn_create_convert_nc_f32_qd8",
        "xnn_reshape_convert_nc_f32_qd8",
    ),
    True: RowKind(
        "uint8",
        "xnn_create_fully_connected_nc_qdu8_f32_qc8w",
        "xnn_reshape_fully_connected_nc_qdu8_f32_qc8w",
        "xnn_create_convert_nc_f32_qdu8",
        "xnn_reshape_convert_nc_f32_qdu8",
    ),
}
"""By whether integers are unsigned."""


@functools.cache
def takes_unsigned_rows() -> bool:
    """Tell whether XNNPACK has kernels for rows from 0 to 255 here.

    It has them for instructions that multiply unsigned by signed bytes (VNNI), and they are three
    times as fast as the others of such a processor.
    """
    ffi, lib = extension().ffi, extension().lib
    made, scale = ffi.new("xnn_operator_t *"), ffi.new("float *", 1.0)
    sizes, limits = (1, 1, 1, 1), (-math.inf, math.inf)
    create = getattr(lib, _ROWS[True].create)
    weight = ffi.new("int8_t *", 1)
    status = create(*sizes, scale, weight, ffi.NULL, *limits, 0, ffi.NULL, made)
    if status != lib.xnn_status_success:
        return False
    lib.xnn_delete_operator(made[0])
    return True


def row_kind(unsigned: bool | None = None) -> RowKind:
    """Give the functions for rows of one type; None for what is faster on this processor."""
    return _ROWS[takes_unsigned_rows() if unsigned is None else unsigned]


class _RowsToInt8(Operator):
    """Quantizes rows of float32, each by its own range; not on a tape by itself."""

    call = "NP_ROWS_TO_INT8"

    def __init__(self, kind: RowKind) -> None:
        super().__init__()
        self.kind = kind
        handle = self._ffi.new("xnn_operator_t *")
        self._created(getattr(self._lib, kind.create_conversion)(self._flags, handle), handle)

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Take `rows` dense rows of `channels`."""
        reshape = getattr(self._lib, self.kind.reshape_conversion)
        status = reshape(self.handle, rows, channels, channels, channels, pool.handle)
        self._reshaped(status, (rows, channels))


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def checked_integers(weight: Weight) -> Weight:
    """Give integers that are looked at when they are made; of the same name.

    Making them raises `UnfitError` where one is -128 and kernels of this processor need -127.
    """

    def make() -> Array:
        array = np.ascontiguousarray(weight.make())
        if array.size and array.min() < LEAST_WEIGHT:
            raise UnfitError("a weight is -128")
        return array

    return dataclasses.replace(weight, make=make)


def checked_scales(matrix: Quantized, outputs: int, axis: int, *, zeros: bool = False) -> Weight:
    """Give a scale for each output; looked at, with the zero points, when they are made.

    Args:
        matrix: of weights.
        outputs: how many there are.
        axis: of the weights, along which they are.
        zeros: whether zero points other than 0 are taken: by a kernel that corrects for them.

    Raises:
        UnfitError: scales of another type or number, or along another axis.
    """
    scale, zero = matrix.scale, matrix.zero
    if scale.dtype != np.float32:
        raise UnfitError(f"its scales are {scale.dtype.name}")
    counts = {scale.size} if zero is None else {scale.size, zero.size}
    if not counts <= {1, outputs}:
        raise UnfitError(f"it has {max(counts)} scales or zero points for {outputs} outputs")
    if counts != {1} and matrix.axis != axis:
        raise UnfitError("its scales are of its input channels")

    def make() -> Array:
        if not zeros and zero is not None and zero.array().any():
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
