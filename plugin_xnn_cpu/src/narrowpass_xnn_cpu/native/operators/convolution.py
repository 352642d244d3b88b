"""Convolutions over [N, H, W, C]."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Array,
    Operator,
    Range,
    check_window,
    checked_pixels,
    checked_range,
    checked_shape,
    float_pointer,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool


class Convolution(Operator):
    """A 2-D convolution over [N, H, W, C].

    Args:
        kernel: dense float32 [O, KH, KW, C / groups]; for depthwise [KH, KW, O].
        bias: [O], or None.
        pads: top, left, bottom, right.
        strides: down, right.
        dilations: down, right.
        groups: of channels.
        limits: what the output is clamped to.
        depthwise: whether each input channel is a group of its own, with the kernel so laid out.
    """

    call = "NP_CONVOLUTION"

    def __init__(
        self,
        kernel: Array,
        bias: Array | None,
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        limits: Range = UNBOUNDED,
        *,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        if depthwise:
            height, width, outputs = checked_shape(kernel.shape, 3)
            inputs, flags = groups, lib.XNN_FLAG_DEPTHWISE_CONVOLUTION
        else:
            outputs, height, width, per_group = checked_shape(kernel.shape, 4)
            inputs, flags = per_group * groups, 0
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        checked_pixels(pads, 0, "padding")
        checked_pixels((*strides, *dilations), 1, "stride or dilation")
        self.channels = inputs
        self._window = (height, width), tuple(pads), tuple(dilations)
        top, left, bottom, right = pads
        low, high = checked_range(limits)
        handle = ffi.new("xnn_operator_t *")
        status = lib.xnn_create_convolution2d_nhwc_f32(
            top,
            right,
            bottom,
            left,
            height,
            width,
            *strides,
            *dilations,
            groups,
            inputs // groups,
            outputs // groups,
            inputs,
            outputs,
            float_pointer(ffi, kernel, kernel.size, "a kernel"),
            float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            flags,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

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


class Deconvolution(Operator):
    """A transposed 2-D convolution over [N, H, W, C].

    Args:
        kernel: dense float32 [O, KH, KW, C / groups], where O is of all groups.
        bias: [O], or None.
        pads: top, left, bottom, right: what is cut off from the output.
        adjustments: rows and columns added below and to the right.
        strides: down, right.
        dilations: down, right.
        groups: of channels.
        limits: what the output is clamped to.
    """

    call = "NP_DECONVOLUTION"

    def __init__(
        self,
        kernel: Array,
        bias: Array | None,
        pads: Sequence[int],
        adjustments: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        limits: Range = UNBOUNDED,
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        outputs, height, width, per_group = checked_shape(kernel.shape, 4)
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        checked_pixels((*pads, *adjustments), 0, "padding")
        checked_pixels((*strides, *dilations), 1, "stride or dilation")
        if any(a >= s for a, s in zip(adjustments, strides, strict=True)):
            raise BackendError(f"output padding {adjustments} is not below the stride {strides}")
        self.channels = per_group * groups
        self._adjustments = tuple(adjustments)
        top, left, bottom, right = pads
        low, high = checked_range(limits)
        handle = ffi.new("xnn_operator_t *")
        status = lib.xnn_create_deconvolution2d_nhwc_f32(
            top,
            right,
            bottom,
            left,
            height,
            width,
            *strides,
            *dilations,
            groups,
            per_group,
            outputs // groups,
            self.channels,
            outputs,
            float_pointer(ffi, kernel, kernel.size, "a kernel"),
            float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            0,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        sizes = self._ffi.new("size_t[2]")
        status = self._lib.xnn_reshape_deconvolution2d_nhwc_f32(
            self.handle, batch, height, width, *self._adjustments, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]
