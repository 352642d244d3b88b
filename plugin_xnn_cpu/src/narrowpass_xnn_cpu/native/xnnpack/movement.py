"""XNNPACK's Pad and Transpose, bilinear Resize and int8 MaxPool."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.problems.bounds import (
    check_kernel_size,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator


class XnnPad(XnnOperator):
    """Padding with a constant.

    Args:
        value: the constant.
        itemsize: bytes of an element: 4 for float32, 1 for int8.
    """

    kind = "pad"

    def __init__(self, value: float, itemsize: int = 4) -> None:
        super().__init__()
        wide, new = itemsize == 4, self._ffi.new
        if wide:
            self.call, self._function = "NP_PAD", "xnn_reshape_constant_pad_nd_x32"
            self._create("xnn_create_constant_pad_nd_x32", new("float *", value))
            return
        self.call, self._function = "NP_PAD_S8", "xnn_reshape_constant_pad_nd_x8"
        self._create("xnn_create_constant_pad_nd_x8", new("int8_t *", int(value)))

    def reshape(
        self, shape: Sequence[int], before: Sequence[int], after: Sequence[int], pool: ThreadPool
    ) -> None:
        """Reshape for an input of `shape`, with elements to add before and after each axis."""
        dims = checked_shape(shape)
        if len(before) != len(dims) or len(after) != len(dims) or min(*before, *after, 0) < 0:
            raise BackendError(f"padding {before}, {after} does not fit {list(dims)}")
        sizes = len(dims), list(dims), list(before), list(after)
        self._reshape(self._function, shape, *sizes, pool.handle)


class XnnTranspose(XnnOperator):
    """A permutation of axes, of elements of 4 bytes or of 1."""

    kind = "transpose"

    def __init__(self, itemsize: int = 4) -> None:
        super().__init__()
        if itemsize == 4:
            self.call, self._function = "NP_TRANSPOSE", "xnn_reshape_transpose_nd_x32"
            self._create("xnn_create_transpose_nd_x32")
            return
        self.call, self._function = "NP_TRANSPOSE_S8", "xnn_reshape_transpose_nd_x8"
        self._create("xnn_create_transpose_nd_x8")

    def reshape(self, shape: Sequence[int], perm: Sequence[int], pool: ThreadPool) -> None:
        """Reshape for an input of `shape`; axis i of the output is axis ``perm[i]`` of that."""
        dims = checked_shape(shape)
        if sorted(perm) != list(range(len(dims))):
            raise BackendError(f"{list(perm)} is not a permutation of the axes of {list(dims)}")
        sizes = len(dims), list(dims), list(perm)
        self._reshape(self._function, shape, *sizes, pool.handle)


class XnnResizeBilinear(XnnOperator):
    """Bilinear interpolation over [N, H, W, C] to a fixed height and width.

    Args:
        height: of the output.
        width: of the output.
        mode: ``half_pixel``, ``align_corners`` or ``asymmetric``, as ONNX calls them.
    """

    call = "NP_RESIZE_BILINEAR"
    kind = "resize bilinear"

    def __init__(self, height: int, width: int, mode: str) -> None:
        super().__init__()
        lib = self._lib
        flags = {
            "half_pixel": 0,
            "align_corners": lib.XNN_FLAG_ALIGN_CORNERS,
            "asymmetric": lib.XNN_FLAG_TENSORFLOW_LEGACY_MODE,
        }[mode]
        checked_pixels((height, width), 1, "size")
        arguments = lib.xnn_datatype_fp32, height, width
        self._create("xnn_create_resize_bilinear2d_nhwc", *arguments, flags=flags)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> None:
        """Reshape for an input of `shape` [N, H, W, C]."""
        dims = checked_shape(shape, 4)
        workspace = self._ffi.new("size_t[1]")
        sizes = *dims, dims[3], dims[3]
        self._reshape("xnn_reshape_resize_bilinear2d_nhwc", shape, *sizes, workspace, pool.handle)
        self.workspace = workspace[0]


class XnnMaxPool(XnnOperator):
    """Maximum over kernel windows of [N, H, W, C], of int8."""

    call = "NP_MAX_POOL_S8"
    kind = "max pool s8"

    def __init__(
        self,
        kernel: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> None:
        super().__init__()
        checked_pixels(pads, 0, "padding")
        checked_pixels((*kernel, *strides, *dilations), 1, "kernel size, stride or dilation")
        self._geometry = tuple(kernel), tuple(pads), tuple(dilations)
        top, left, bottom, right = pads
        sizes = (top, right, bottom, left, *kernel, *strides, *dilations)
        self._create("xnn_create_max_pooling2d_nhwc_s8", *sizes, -128, 127)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Reshape for an input of `shape` [N, H, W, C]; return the output's height and width."""
        dims = checked_shape(shape, 4)
        check_kernel_size(dims, *self._geometry)
        out = self._ffi.new("size_t[2]")
        sizes = *dims, dims[3], dims[3]
        self._reshape("xnn_reshape_max_pooling2d_nhwc_s8", shape, *sizes, out, out + 1, pool.handle)
        return out[0], out[1]
