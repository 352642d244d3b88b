"""XNNPACK's convolutions of int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.operators.base import (
    Operator,
    check_window,
    checked_pixels,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.operators.convolution import Movement, check_spread
from narrowpass_xnn_cpu.native.operators.int8 import (
    Requantized,
    checked_constants,
    fitting,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session


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
        integers, scales = checked_constants(kernel, outputs, axis)
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
            ends = made.zero_point, made.scale, low, high, flags | self._flags, cache, handle
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
