"""Convolutions over [N, H, W, C]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Operator,
    Range,
    check_window,
    checked_pixels,
    checked_range,
    checked_shape,
    checked_weights,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session


@dataclass(frozen=True)
class Movement:
    """How a window moves.

    Attributes:
        pads: top, left, bottom, right; of a transposed convolution, what is cut off.
        strides: down, right.
        dilations: down, right.
        groups: of channels.
        limits: what the output is clamped to.
    """

    pads: Sequence[int] = (0, 0, 0, 0)
    strides: Sequence[int] = (1, 1)
    dilations: Sequence[int] = (1, 1)
    groups: int = 1
    limits: Range = UNBOUNDED


def check_spread(
    shape: Sequence[int], window: Sequence[int], movement: Movement, adjustments: Sequence[int]
) -> None:
    """Check that a transposed convolution of [N, H, W, C] leaves an output.

    XNNPACK frees what it keeps where the output has no pixels, and goes on using it.
    """
    for axis in (0, 1):
        reach = (window[axis] - 1) * movement.dilations[axis] + 1
        size = (shape[1 + axis] - 1) * movement.strides[axis] + reach + adjustments[axis]
        if size <= movement.pads[axis] + movement.pads[2 + axis]:
            raise BackendError(f"nothing is left of the output for an input of {list(shape)}")


class _Windowed(Operator):
    """What plain and transposed convolutions share: how they are created.

    Attributes:
        channels: of the input.
    """

    _function: str

    def _create(
        self,
        kernel: Weight,
        bias: Weight | None,
        window: tuple[int, int],
        channels: tuple[int, int],
        movement: Movement,
        flags: int,
        session: Session | None,
    ) -> None:
        """Create the operator, with input and output channels of all groups."""
        inputs, outputs = channels
        groups = movement.groups
        if groups < 1 or outputs % groups or inputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        checked_pixels(movement.pads, 0, "padding")
        checked_pixels((*movement.strides, *movement.dilations), 1, "stride or dilation")
        checked_weights(kernel, bias, outputs, "float32", "float32")
        self.channels = inputs
        top, left, bottom, right = movement.pads
        low, high = checked_range(movement.limits)
        create = getattr(self._lib, self._function)
        sizes = (
            *(top, right, bottom, left, *window),
            *(*movement.strides, *movement.dilations),
            *(groups, inputs // groups, outputs // groups, inputs, outputs),
        )
        self._packed(
            session,
            (groups, movement.strides, flags),
            kernel,
            bias,
            lambda k, b, cache, made: create(
                *sizes, k, b, low, high, flags | self._flags, cache, made
            ),
        )


class Convolution(_Windowed):
    """A 2-D convolution over [N, H, W, C].

    Args:
        kernel: float32 [O, KH, KW, C / groups]; for depthwise [KH, KW, O].
        bias: float32 [O], or None.
        movement: of the window.
        depthwise: whether each input channel is a group of its own, with the kernel so laid out.
        session: of the weights cache; None to pack for this operator alone.
    """

    call = "NP_CONVOLUTION"
    name = "convolution"
    _function = "xnn_create_convolution2d_nhwc_f32"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        *,
        depthwise: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        if depthwise:
            height, width, outputs = checked_shape(kernel.shape, 3)
            inputs, flags = movement.groups, self._lib.XNN_FLAG_DEPTHWISE_CONVOLUTION
        else:
            outputs, height, width, per_group = checked_shape(kernel.shape, 4)
            inputs, flags = per_group * movement.groups, 0
        window = height, width
        self._window = window, tuple(movement.pads), tuple(movement.dilations)
        self._create(kernel, bias, window, (inputs, outputs), movement, flags, session)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        check_window((batch, height, width, channels), *self._window)
        ffi = self._ffi
        sizes = ffi.new("size_t[3]")
        status = self._lib.xnn_reshape_convolution2d_nhwc_f32(
            self.handle, batch, height, width, sizes, sizes + 1, sizes + 2, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
        return sizes[1], sizes[2]


class Deconvolution(_Windowed):
    """A transposed 2-D convolution over [N, H, W, C].

    Args:
        kernel: float32 [O, KH, KW, C / groups], where O is of all groups.
        bias: float32 [O], or None.
        movement: of the window.
        adjustments: rows and columns added below and to the right.
        session: of the weights cache; None to pack for this operator alone.
    """

    call = "NP_DECONVOLUTION"
    _function = "xnn_create_deconvolution2d_nhwc_f32"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        adjustments: Sequence[int] = (0, 0),
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        outputs, height, width, per_group = checked_shape(kernel.shape, 4)
        checked_pixels(adjustments, 0, "output padding")
        if any(a >= s for a, s in zip(adjustments, movement.strides, strict=True)):
            raise BackendError(
                f"output padding {adjustments} is not below the stride {movement.strides}"
            )
        self._window, self._movement = (height, width), movement
        self._adjustments = tuple(adjustments)
        channels = per_group * movement.groups, outputs
        self._create(kernel, bias, (height, width), channels, movement, 0, session)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        check_spread(
            (batch, height, width, channels), self._window, self._movement, self._adjustments
        )
        sizes = self._ffi.new("size_t[2]")
        status = self._lib.xnn_reshape_deconvolution2d_nhwc_f32(
            self.handle, batch, height, width, *self._adjustments, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]
