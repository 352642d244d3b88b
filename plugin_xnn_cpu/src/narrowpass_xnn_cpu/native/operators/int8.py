"""Operators that take int8 and give int8, or float32.

A byte q of a tensor stands for ``scale · (q - zero_point)``. Sums are exact: int32 in steps of
the input's scale times the weight's, to which a bias of the same steps is added. What comes of
them is at most one step off the rounded real number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import (
    Operator,
    check_window,
    checked_pixels,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement, check_spread
from narrowpass_xnn_cpu.native.operators.quantized import (
    SMALLEST_SCALE,
    UnfitError,
    checked_integers,
    checked_scales,
    row_kind,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Quantized, Weight

LOW, HIGH = -128, 127

PRODUCT_RATIO = (2.0**-32, 2.0**8)
"""What the input's scale times the weight's over the output's must be in."""
SUM_RATIO = (2.0**-10, 2.0**8)
"""The same of each operand's scale over that of a sum or difference."""
MULTIPLY_RATIO = (2.0**-16, 2.0**8)
"""The same of the scales of two factors over that of their product."""


@dataclass(frozen=True)
class Quantization:
    """How a tensor of int8 is to be read.

    Attributes:
        scale: positive, finite and normal; a float32 number.
        zero_point: the byte that stands for 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    def check(self) -> None:
        """Raise `UnfitError` for what XNNPACK does not compute rightly with."""
        if not (math.isfinite(self.scale) and self.scale >= SMALLEST_SCALE):
            raise UnfitError(f"scale {self.scale} is not a positive, finite, normal number")
        if not LOW <= self.zero_point <= HIGH:
            raise UnfitError(f"zero point {self.zero_point} is not in [{LOW}, {HIGH}]")


@dataclass(frozen=True)
class Requantized:
    """From what a product or convolution comes, and to what.

    Attributes:
        given: of the input.
        made: of the output.
        limits: bytes that the output is clamped to.
    """

    given: Quantization
    made: Quantization
    limits: tuple[int, int] = (LOW, HIGH)

    def check(self) -> None:
        """Raise `UnfitError` for what XNNPACK does not compute rightly with."""
        self.given.check()
        self.made.check()
        low, high = self.limits
        # XNNPACK takes no empty range; the lowest and the highest byte alone are one each.
        if not LOW <= low < high <= HIGH:
            raise UnfitError(f"the output is clamped to [{low}, {high}]")


def check_ratio(what: str, ratio: float, limits: tuple[float, float]) -> None:
    """Raise `UnfitError` where a ratio of scales is not within limits; the upper one excluded."""
    low, high = limits
    if not low <= ratio < high:
        raise UnfitError(f"{what} is {ratio:.4g}, and not in [{low:.4g}, {high:.4g})")


def _checked(kernel: Quantized, outputs: int, axis: int) -> tuple[Weight, Weight]:
    """Give integers and a scale for each output; looked at when they are made."""
    return checked_integers(kernel.integers), checked_scales(kernel, outputs, axis)


def fitting(scales: Weight, requantized: Requantized) -> Weight:
    """Give scales of weights that are looked at against those of input and output.

    Making them raises `UnfitError` where a ratio is not one that XNNPACK takes: what fits is the
    same on all processors.
    """
    step = requantized.given.scale / requantized.made.scale

    def make() -> Array:
        array = scales.array()
        for extreme in (array.min(), array.max()):
            check_ratio(
                "input scale * weight scale / output scale", float(extreme) * step, PRODUCT_RATIO
            )
        return array

    return Weight(scales.shape, scales.dtype, scales.identity, make, scales.drop)


class _Windowed(Operator):
    """What plain and transposed convolutions share: how they are created."""

    _function: str

    def _create(
        self,
        kernel: Quantized,
        bias: Weight | None,
        window: tuple[int, int],
        channels: tuple[int, int],
        movement: Movement,
        requantized: Requantized,
        axis: int,
        flags: int,
        session: Session | None,
    ) -> None:
        requantized.check()
        inputs, outputs = channels
        groups = movement.groups
        if groups < 1 or outputs % groups or inputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        checked_pixels(movement.pads, 0, "padding")
        checked_pixels((*movement.strides, *movement.dilations), 1, "stride or dilation")
        integers, scales = _checked(kernel, outputs, axis)
        checked_weights(integers, bias, outputs, "int8", "int32")
        self.channels = inputs
        top, left, bottom, right = movement.pads
        given, made, (low, high) = requantized.given, requantized.made, requantized.limits
        create = getattr(self._lib, self._function)
        sizes = (
            *(top, right, bottom, left, *window),
            *(*movement.strides, *movement.dilations),
            *(groups, inputs // groups, outputs // groups, inputs, outputs),
        )

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any) -> int:
            ends = made.zero_point, made.scale, low, high, flags, cache, handle
            return int(create(*sizes, given.zero_point, given.scale, s, k, b, *ends))

        # All that the packed bytes follow from: the bias takes in zero points, scales are of both.
        parameters = (groups, movement.strides, flags, given, made.scale.hex())
        self._packed(session, parameters, integers, bias, call, [fitting(scales, requantized)])


class ConvolutionS8(_Windowed):
    """A 2-D convolution over [N, H, W, C] of int8.

    Args:
        kernel: int8 [O, KH, KW, C / groups], for depthwise [KH, KW, O]; scales of O.
        bias: int32 [O], or None.
        movement: of the window; its limits are not used.
        requantized: of input and output.
        depthwise: whether each input channel is a group of its own, with the kernel so laid out.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that XNNPACK does not compute rightly with.
    """

    call = "NP_CONVOLUTION_S8"
    _function = "xnn_create_convolution2d_nhwc_qs8_qc8w"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        *,
        depthwise: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        shape = kernel.integers.shape
        if depthwise:
            height, width, outputs = checked_shape(shape, 3)
            inputs, flags = movement.groups, self._lib.XNN_FLAG_DEPTHWISE_CONVOLUTION
        else:
            outputs, height, width, per_group = checked_shape(shape, 4)
            inputs, flags = per_group * movement.groups, 0
        window, channels = (height, width), (inputs, outputs)
        self._window = window, tuple(movement.pads), tuple(movement.dilations)
        axis = 2 if depthwise else 0
        self._create(kernel, bias, window, channels, movement, requantized, axis, flags, session)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        check_window((batch, height, width, channels), *self._window)
        sizes = self._ffi.new("size_t[3]")
        status = self._lib.xnn_reshape_convolution2d_nhwc_qs8_qc8w(
            self.handle, batch, height, width, sizes, sizes + 1, sizes + 2, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
        return sizes[1], sizes[2]


class DeconvolutionS8(_Windowed):
    """A transposed 2-D convolution over [N, H, W, C] of int8.

    Args:
        kernel: int8 [O, KH, KW, C / groups], where O is of all groups; scales of axis 0.
        bias: int32 [O], or None.
        movement: of the window; its limits are not used.
        requantized: of input and output.
        adjustments: rows and columns added below and to the right.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that XNNPACK does not compute rightly with.
    """

    call = "NP_DECONVOLUTION_S8"
    _function = "xnn_create_deconvolution2d_nhwc_qs8_qc8w"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        adjustments: Sequence[int] = (0, 0),
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        outputs, height, width, per_group = checked_shape(kernel.integers.shape, 4)
        checked_pixels(adjustments, 0, "output padding")
        if any(a >= s for a, s in zip(adjustments, movement.strides, strict=True)):
            raise BackendError(
                f"output padding {adjustments} is not below the stride {movement.strides}"
            )
        self._window, self._movement = (height, width), movement
        self._adjustments = tuple(adjustments)
        window, channels = (height, width), (per_group * movement.groups, outputs)
        self._create(kernel, bias, window, channels, movement, requantized, 0, 0, session)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        check_spread(
            (batch, height, width, channels), self._window, self._movement, self._adjustments
        )
        sizes = self._ffi.new("size_t[2]")
        status = self._lib.xnn_reshape_deconvolution2d_nhwc_qs8_qc8w(
            self.handle, batch, height, width, *self._adjustments, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]


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
        integers, scales = _checked(matrix, outputs, 1 if transposed else 0)
        checked_weights(integers, bias, outputs, "int8", "int32")
        given, made, (low, high) = requantized.given, requantized.made, requantized.limits
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        create = lib.xnn_create_fully_connected_nc_qs8_qc8w
        sizes = inputs, outputs, inputs, outputs

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any) -> int:
            ends = made.zero_point, made.scale, low, high, flags, cache, handle
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
        integers, scales = _checked(matrix, outputs, 1 if transposed else 0)
        checked_weights(integers, bias, outputs, "int8", "float32")
        flags = lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0
        self._rows = row_kind()
        create = getattr(lib, self._rows.create)
        sizes = inputs, outputs, inputs, outputs
        null = self._ffi.NULL

        def call(k: Any, b: Any, cache: Any, handle: Any, s: Any, added: Any = null) -> int:
            return int(create(*sizes, s, k, added, *limits, flags, cache, handle))

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


class BinaryS8(Operator):
    """A sum, difference or product of two tensors of int8 that broadcast.

    Args:
        kind: ``add``, ``subtract`` or ``multiply``.
        first: of the first operand.
        second: of the second one.
        made: of the result.

    Raises:
        UnfitError: scales that XNNPACK does not compute rightly with.
    """

    call = "NP_BINARY"

    def __init__(
        self, kind: str, first: Quantization, second: Quantization, made: Quantization
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        for item in (first, second, made):
            item.check()
        if kind == "multiply":
            ratio = first.scale * second.scale / made.scale
            check_ratio("first scale * second scale / output scale", ratio, MULTIPLY_RATIO)
        else:
            for item in (first, second):
                check_ratio("input scale / output scale", item.scale / made.scale, SUM_RATIO)
        handle = ffi.new("xnn_operator_t *")
        quantizations = [
            ffi.new("struct xnn_quantization_params *", (item.zero_point, item.scale))
            for item in (first, second, made)
        ]
        status = lib.xnn_create_binary_elementwise_nd(
            getattr(lib, f"xnn_binary_{kind}"), lib.xnn_datatype_qint8, *quantizations, 0, handle
        )
        self._created(status, handle)

    def reshape(self, first: Sequence[int], second: Sequence[int], pool: ThreadPool) -> None:
        """Take operands of these shapes, which broadcast together."""
        a, b = checked_shape(first), checked_shape(second)
        for x, y in zip(reversed(a), reversed(b), strict=False):
            if x != y and 1 not in (x, y):
                raise BackendError(f"shapes {list(a)} and {list(b)} do not broadcast together")
        status = self._lib.xnn_reshape_binary_elementwise_nd(
            self.handle, len(a), list(a), len(b), list(b), pool.handle
        )
        self._reshaped(status, (a, b))


class MeanS8(Operator):
    """A mean of int8 over axes, which stay as dimensions of 1.

    Args:
        given: of the input.
        made: of the result.

    Raises:
        UnfitError: scales that XNNPACK does not compute rightly with.
    """

    call = "NP_REDUCE_S8"

    MOST_ELEMENTS = (2**31 - 1) // 256
    """Elements of one mean, whose sum is an int32."""

    def __init__(self, given: Quantization, made: Quantization) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        given.check()
        made.check()
        ratio = given.scale / made.scale
        check_ratio("input scale / output scale", ratio, SUM_RATIO)
        handle = ffi.new("xnn_operator_t *")
        quantizations = [
            ffi.new("struct xnn_quantization_params *", (item.zero_point, item.scale))
            for item in (given, made)
        ]
        status = lib.xnn_create_reduce_nd(
            lib.xnn_reduce_mean,
            lib.xnn_datatype_qint8,
            *quantizations,
            lib.XNN_FLAG_KEEP_DIMS,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; reduce `axes`, which are not negative."""
        dims = checked_shape(shape)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(dims) for axis in axes):
            raise BackendError(f"axes {list(axes)} are not distinct axes of {list(dims)}")
        if math.prod(dims[axis] for axis in axes) > self.MOST_ELEMENTS:
            raise BackendError(f"a mean over axes {list(axes)} of {list(dims)} has too many terms")
        sizes = self._ffi.new("size_t[1]")
        status = self._lib.xnn_reshape_reduce_nd(
            self.handle, len(axes), sorted(axes), len(dims), list(dims), sizes, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
