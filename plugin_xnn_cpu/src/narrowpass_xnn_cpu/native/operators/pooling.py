"""Pooling over windows of [N, H, W, C]."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Operator,
    Range,
    check_window,
    checked_pixels,
    checked_range,
    checked_shape,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool


class MaxPool(Operator):
    """Maximum over windows of [N, H, W, C], of float32 or int8."""

    def __init__(
        self,
        window: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        itemsize: int = 4,
    ) -> None:
        super().__init__()
        lib = self._lib
        if itemsize == 4:
            self.call, self._reshape = "NP_MAX_POOL", lib.xnn_reshape_max_pooling2d_nhwc_f32
            create, limits = lib.xnn_create_max_pooling2d_nhwc_f32, UNBOUNDED
        else:
            self.call, self._reshape = "NP_MAX_POOL_S8", lib.xnn_reshape_max_pooling2d_nhwc_s8
            create, limits = lib.xnn_create_max_pooling2d_nhwc_s8, (-128, 127)
        checked_pixels(pads, 0, "padding")
        checked_pixels((*window, *strides, *dilations), 1, "window, stride or dilation")
        self._window, self._pads = tuple(window), tuple(pads)
        self._strides, self._dilations = tuple(strides), tuple(dilations)
        top, left, bottom, right = pads
        handle = self._ffi.new("xnn_operator_t *")
        sizes = (top, right, bottom, left, *window, *strides, *dilations)
        status = create(*sizes, *limits, self._flags, handle)
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        dims = checked_shape(shape, 4)
        check_window(dims, self._window, self._pads, self._dilations)
        sizes = self._ffi.new("size_t[2]")
        channels = dims[3]
        status = self._reshape(
            self.handle, *dims, channels, channels, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]


class AveragePool(Operator):
    """Mean over windows of [N, H, W, C]; padding is not counted."""

    call = "NP_AVERAGE_POOL"

    def __init__(
        self,
        window: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        limits: Range = UNBOUNDED,
    ) -> None:
        super().__init__()
        checked_pixels(pads, 0, "padding")
        checked_pixels((*window, *strides), 1, "window or stride")
        self._window, self._pads = tuple(window), tuple(pads)
        top, left, bottom, right = pads
        handle = self._ffi.new("xnn_operator_t *")
        status = self._lib.xnn_create_average_pooling2d_nhwc_f32(
            top, right, bottom, left, *window, *strides, *checked_range(limits), self._flags, handle
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        dims = checked_shape(shape, 4)
        check_window(dims, self._window, self._pads, (1, 1))
        sizes = self._ffi.new("size_t[2]")
        channels = dims[3]
        status = self._lib.xnn_reshape_average_pooling2d_nhwc_f32(
            self.handle, *dims, channels, channels, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]
