"""Pooling over windows of [N, H, W, C] of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.operators.base import (
    Operator,
    check_window,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool


class MaxPoolS8(Operator):
    """Maximum over windows of [N, H, W, C], of int8."""

    call = "NP_MAX_POOL_S8"

    def __init__(
        self,
        window: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> None:
        super().__init__()
        checked_pixels(pads, 0, "padding")
        checked_pixels((*window, *strides, *dilations), 1, "window, stride or dilation")
        self._window, self._pads = tuple(window), tuple(pads)
        self._dilations = tuple(dilations)
        top, left, bottom, right = pads
        handle = self._ffi.new("xnn_operator_t *")
        sizes = (top, right, bottom, left, *window, *strides, *dilations)
        status = self._lib.xnn_create_max_pooling2d_nhwc_s8(*sizes, -128, 127, self._flags, handle)
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        dims = checked_shape(shape, 4)
        check_window(dims, self._window, self._pads, self._dilations)
        sizes = self._ffi.new("size_t[2]")
        channels = dims[3]
        status = self._lib.xnn_reshape_max_pooling2d_nhwc_s8(
            self.handle, *dims, channels, channels, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]
