"""Operators that move or interpolate elements."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import Operator, checked_pixels, checked_shape
from narrowpass_xnn_cpu.native.pool import ThreadPool


class Pad(Operator):
    """Padding with a constant.

    Args:
        value: what is put around.
        itemsize: bytes of an element: 4 for float32, 1 for int8.
    """

    def __init__(self, value: float, itemsize: int = 4) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        handle = ffi.new("xnn_operator_t *")
        if itemsize == 4:
            self.call = "NP_PAD"
            self._reshape = lib.xnn_reshape_constant_pad_nd_x32
            status = lib.xnn_create_constant_pad_nd_x32(
                ffi.new("float *", value), self._flags, handle
            )
        else:
            self.call = "NP_PAD_S8"
            self._reshape = lib.xnn_reshape_constant_pad_nd_x8
            status = lib.xnn_create_constant_pad_nd_x8(
                ffi.new("int8_t *", int(value)), self._flags, handle
            )
        self._created(status, handle)

    def reshape(
        self, shape: Sequence[int], before: Sequence[int], after: Sequence[int], pool: ThreadPool
    ) -> None:
        """Take an input of `shape`, with as many elements to add before and after each axis."""
        dims = checked_shape(shape)
        if len(before) != len(dims) or len(after) != len(dims) or min(*before, *after, 0) < 0:
            raise BackendError(f"padding {before}, {after} does not fit {list(dims)}")
        status = self._reshape(
            self.handle, len(dims), list(dims), list(before), list(after), pool.handle
        )
        self._reshaped(status, shape)


class Transpose(Operator):
    """A permutation of axes, of elements of 4 bytes or of 1."""

    def __init__(self, itemsize: int = 4) -> None:
        super().__init__()
        lib = self._lib
        handle = self._ffi.new("xnn_operator_t *")
        if itemsize == 4:
            self.call, self._reshape = "NP_TRANSPOSE", lib.xnn_reshape_transpose_nd_x32
            create = lib.xnn_create_transpose_nd_x32
        else:
            self.call, self._reshape = "NP_TRANSPOSE_S8", lib.xnn_reshape_transpose_nd_x8
            create = lib.xnn_create_transpose_nd_x8
        self._created(create(self._flags, handle), handle)

    def reshape(self, shape: Sequence[int], perm: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; axis i of the output is axis ``perm[i]`` of the input."""
        dims = checked_shape(shape)
        if sorted(perm) != list(range(len(dims))):
            raise BackendError(f"{list(perm)} is not a permutation of the axes of {list(dims)}")
        status = self._reshape(self.handle, len(dims), list(dims), list(perm), pool.handle)
        self._reshaped(status, shape)


class ResizeBilinear(Operator):
    """Bilinear interpolation over [N, H, W, C] to a fixed height and width.

    Args:
        height: of the output.
        width: of the output.
        mode: ``half_pixel``, ``align_corners`` or ``asymmetric``, as ONNX calls them.
    """

    call = "NP_RESIZE_BILINEAR"

    def __init__(self, height: int, width: int, mode: str) -> None:
        super().__init__()
        lib = self._lib
        flags = {
            "half_pixel": 0,
            "align_corners": lib.XNN_FLAG_ALIGN_CORNERS,
            "asymmetric": lib.XNN_FLAG_TENSORFLOW_LEGACY_MODE,
        }[mode]
        checked_pixels((height, width), 1, "size")
        handle = self._ffi.new("xnn_operator_t *")
        status = lib.xnn_create_resize_bilinear2d_nhwc(
            lib.xnn_datatype_fp32, height, width, flags | self._flags, handle
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape` [N, H, W, C]."""
        dims = checked_shape(shape, 4)
        sizes = self._ffi.new("size_t[1]")
        channels = dims[3]
        status = self._lib.xnn_reshape_resize_bilinear2d_nhwc(
            self.handle, *dims, channels, channels, sizes, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
