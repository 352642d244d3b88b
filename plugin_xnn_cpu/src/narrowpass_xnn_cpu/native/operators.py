"""XNNPACK's operators: created once, reshaped when sizes change, freed with the object.

Every constructor and `reshape` checks what XNNPACK would assert or take silently. Sizes are in
elements, and inputs and outputs are dense: [N, H, W, C] for images, rows of channels otherwise.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import check, extension
from narrowpass_xnn_cpu.native.pool import ThreadPool

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Range = tuple[float, float]
"""Bounds that an output is clamped to; infinite for none."""

UNBOUNDED: Range = (-math.inf, math.inf)
MAX_DIMS = 6
_MOST_ELEMENTS = 1 << 46


class Operator:
    """An operator of XNNPACK.

    Attributes:
        call: which setup a tape uses; a name of ``enum np_call``.
        handle: XNNPACK's handle.
        workspace: bytes of scratch memory that a run needs, after `reshape`.
    """

    call: ClassVar[str]

    def __init__(self) -> None:
        self.workspace = 0
        self.handle: Any = None
        self._ffi = extension().ffi
        self._lib = extension().lib

    def _kind(self) -> str:
        return self.call.removeprefix("NP_").lower().replace("_", " ")

    def _created(self, status: int, handle: Any) -> None:
        check(status, f"XNNPACK does not create this {self._kind()}")
        self.handle = handle[0]
        weakref.finalize(self, self._lib.xnn_delete_operator, self.handle).atexit = False

    def _reshaped(self, status: int, shapes: object) -> None:
        check(status, f"XNNPACK does not take {shapes} for this {self._kind()}")


def _checked(shape: Sequence[int], rank: int | None = None) -> Shape:
    """Check a shape that goes to C: its rank, its signs, and that sizes do not overflow."""
    dims = tuple(int(dim) for dim in shape)
    if rank is not None and len(dims) != rank:
        raise BackendError(f"a shape of rank {rank} is needed here, not {list(dims)}")
    if len(dims) > MAX_DIMS:
        raise BackendError(f"XNNPACK takes {MAX_DIMS} dimensions at most, not {list(dims)}")
    if any(dim < 1 for dim in dims) or math.prod(dims) > _MOST_ELEMENTS:
        raise BackendError(f"a tensor of shape {list(dims)} cannot be computed with")
    return dims


def _bounds(limits: Range) -> Range:
    low, high = limits
    if math.isnan(low) or math.isnan(high) or low > high:
        raise BackendError(f"outputs cannot be clamped to [{low}, {high}]")
    return low, high


def _pixels(limits: Sequence[int], least: int, what: str) -> None:
    if any(not least <= int(item) < 1 << 31 for item in limits):
        raise BackendError(f"{what} {list(limits)} is out of range")


def _float_pointer(ffi: Any, array: Array | None, size: int, what: str) -> Any:
    if array is None:
        return ffi.NULL
    if array.dtype != np.float32 or not array.flags.c_contiguous or array.size != size:
        raise BackendError(
            f"{what} must be {size} dense float32 values, not {array.dtype}{list(array.shape)}"
        )
    return ffi.cast("float *", ffi.from_buffer(array))


class Unary(Operator):
    """An elementwise operator with one operand.

    Args:
        kind: as in ``enum xnn_unary_operator``, such as ``sigmoid``.
        parameters: the bounds of ``clamp``, or the slope of ``elu`` and ``leaky_relu``.
    """

    call = "NP_UNARY"

    def __init__(self, kind: str, parameters: Sequence[float] = ()) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        params = ffi.new("union xnn_unary_params *")
        if kind == "clamp":
            params.clamp.min, params.clamp.max = _bounds((parameters[0], parameters[1]))
        elif kind == "elu":
            (params.elu.alpha,) = parameters
        elif kind == "leaky_relu":
            (params.leaky_relu.negative_slope,) = parameters
        handle = ffi.new("xnn_operator_t *")
        fp32 = lib.xnn_datatype_fp32
        operator = getattr(lib, f"xnn_unary_{kind}")
        null = ffi.NULL
        status = lib.xnn_create_unary_elementwise_nc(
            operator, fp32, fp32, params, null, null, null, 0, handle
        )
        self._created(status, handle)

    def reshape(self, count: int, pool: ThreadPool) -> None:
        """Take `count` elements."""
        _checked((count,))
        status = self._lib.xnn_reshape_unary_elementwise_nc(
            self.handle, count, 1, 1, 1, pool.handle
        )
        self._reshaped(status, count)


class Binary(Operator):
    """An elementwise operator with two operands that broadcast; as in ``xnn_binary_operator``."""

    call = "NP_BINARY"

    def __init__(self, kind: str) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        handle = ffi.new("xnn_operator_t *")
        operator = getattr(lib, f"xnn_binary_{kind}")
        null = ffi.NULL
        status = lib.xnn_create_binary_elementwise_nd(
            operator, lib.xnn_datatype_fp32, null, null, null, 0, handle
        )
        self._created(status, handle)

    def reshape(self, first: Sequence[int], second: Sequence[int], pool: ThreadPool) -> None:
        """Take operands of these shapes, which broadcast together."""
        a, b = _checked(first), _checked(second)
        for x, y in zip(reversed(a), reversed(b), strict=False):
            if x != y and 1 not in (x, y):
                raise BackendError(f"shapes {list(a)} and {list(b)} do not broadcast together")
        status = self._lib.xnn_reshape_binary_elementwise_nd(
            self.handle, len(a), list(a), len(b), list(b), pool.handle
        )
        self._reshaped(status, (a, b))


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
            height, width, outputs = _checked(kernel.shape, 3)
            inputs, flags = groups, lib.XNN_FLAG_DEPTHWISE_CONVOLUTION
        else:
            outputs, height, width, per_group = _checked(kernel.shape, 4)
            inputs, flags = per_group * groups, 0
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        _pixels(pads, 0, "padding")
        _pixels((*strides, *dilations), 1, "stride or dilation")
        self.channels = inputs
        self._window = (height, width), tuple(pads), tuple(dilations)
        top, left, bottom, right = pads
        low, high = _bounds(limits)
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
            _float_pointer(ffi, kernel, kernel.size, "a kernel"),
            _float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            flags,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = _checked(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        _check_window((batch, height, width, channels), *self._window)
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
        outputs, height, width, per_group = _checked(kernel.shape, 4)
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        _pixels((*pads, *adjustments), 0, "padding")
        _pixels((*strides, *dilations), 1, "stride or dilation")
        if any(a >= s for a, s in zip(adjustments, strides, strict=True)):
            raise BackendError(f"output padding {adjustments} is not below the stride {strides}")
        self.channels = per_group * groups
        self._adjustments = tuple(adjustments)
        top, left, bottom, right = pads
        low, high = _bounds(limits)
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
            _float_pointer(ffi, kernel, kernel.size, "a kernel"),
            _float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            0,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = _checked(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        sizes = self._ffi.new("size_t[2]")
        status = self._lib.xnn_reshape_deconvolution2d_nhwc_f32(
            self.handle, batch, height, width, *self._adjustments, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]


class FullyConnected(Operator):
    """Rows times a constant matrix, plus a bias.

    Args:
        kernel: dense float32 [O, C], or [C, O] where `transposed`.
        bias: [O], or None.
        limits: what the output is clamped to.
        transposed: whether the kernel has its input channels first.
    """

    call = "NP_FULLY_CONNECTED"

    def __init__(
        self,
        kernel: Array,
        bias: Array | None,
        limits: Range = UNBOUNDED,
        *,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        outputs, inputs = _checked(kernel.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.channels, self.outputs = inputs, outputs
        low, high = _bounds(limits)
        handle = ffi.new("xnn_operator_t *")
        status = lib.xnn_create_fully_connected_nc_f32(
            inputs,
            outputs,
            inputs,
            outputs,
            _float_pointer(ffi, kernel, kernel.size, "a kernel"),
            _float_pointer(ffi, bias, outputs, "a bias"),
            low,
            high,
            lib.XNN_FLAG_TRANSPOSE_WEIGHTS if transposed else 0,
            ffi.NULL,
            handle,
        )
        self._created(status, handle)

    def reshape(self, rows: int, pool: ThreadPool) -> None:
        """Take `rows` rows."""
        _checked((rows, max(self.channels, self.outputs)))
        status = self._lib.xnn_reshape_fully_connected_nc_f32(self.handle, rows, pool.handle)
        self._reshaped(status, (rows, self.channels))


class BatchMatMul(Operator):
    """Products of matrices of two tensors: [..., M, K] by [..., K, N], or [..., N, K]."""

    call = "NP_BATCH_MATMUL"

    def __init__(self, *, transpose_b: bool = False) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        handle = ffi.new("xnn_operator_t *")
        flags = lib.XNN_FLAG_TRANSPOSE_B if transpose_b else 0
        status = lib.xnn_create_batch_matrix_multiply_nc_f32(flags, handle)
        self._created(status, handle)

    def reshape(
        self,
        batch_a: Sequence[int],
        batch_b: Sequence[int],
        m: int,
        k: int,
        n: int,
        pool: ThreadPool,
    ) -> None:
        """Take batches of one rank that broadcast together, of M x K and K x N matrices."""
        a, b = _checked((*batch_a, m, k)), _checked((*batch_b, k, n))
        if len(a) != len(b):
            raise BackendError(f"batches {list(batch_a)} and {list(batch_b)} differ in rank")
        sizes = self._ffi.new("size_t[1]")
        status = self._lib.xnn_reshape_batch_matrix_multiply_nc_f32(
            self.handle, len(a) - 2, list(a[:-2]), list(b[:-2]), m, k, n, sizes, pool.handle
        )
        self._reshaped(status, (a, b))
        self.workspace = sizes[0]


class MaxPool(Operator):
    """Maximum over windows of [N, H, W, C]."""

    call = "NP_MAX_POOL"

    def __init__(
        self,
        window: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        limits: Range = UNBOUNDED,
    ) -> None:
        super().__init__()
        _pixels(pads, 0, "padding")
        _pixels((*window, *strides, *dilations), 1, "window, stride or dilation")
        self._window, self._pads = tuple(window), tuple(pads)
        self._strides, self._dilations = tuple(strides), tuple(dilations)
        top, left, bottom, right = pads
        handle = self._ffi.new("xnn_operator_t *")
        status = self._lib.xnn_create_max_pooling2d_nhwc_f32(
            top, right, bottom, left, *window, *strides, *dilations, *_bounds(limits), 0, handle
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        dims = _checked(shape, 4)
        _check_window(dims, self._window, self._pads, self._dilations)
        sizes = self._ffi.new("size_t[2]")
        channels = dims[3]
        status = self._lib.xnn_reshape_max_pooling2d_nhwc_f32(
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
        _pixels(pads, 0, "padding")
        _pixels((*window, *strides), 1, "window or stride")
        self._window, self._pads = tuple(window), tuple(pads)
        top, left, bottom, right = pads
        handle = self._ffi.new("xnn_operator_t *")
        status = self._lib.xnn_create_average_pooling2d_nhwc_f32(
            top, right, bottom, left, *window, *strides, *_bounds(limits), 0, handle
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        dims = _checked(shape, 4)
        _check_window(dims, self._window, self._pads, (1, 1))
        sizes = self._ffi.new("size_t[2]")
        channels = dims[3]
        status = self._lib.xnn_reshape_average_pooling2d_nhwc_f32(
            self.handle, *dims, channels, channels, sizes, sizes + 1, pool.handle
        )
        self._reshaped(status, shape)
        return sizes[0], sizes[1]


def _check_window(
    shape: Shape, window: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> None:
    for axis in (0, 1):
        reach = (window[axis] - 1) * dilations[axis] + 1
        if reach > shape[1 + axis] + pads[axis] + pads[2 + axis]:
            raise BackendError(
                f"a window of {reach} is larger than the padded input of {list(shape)}"
            )


class Reduce(Operator):
    """A reduction over axes, which stay as dimensions of 1; as in ``xnn_reduce_operator``."""

    call = "NP_REDUCE"

    def __init__(self, kind: str) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        handle = ffi.new("xnn_operator_t *")
        status = lib.xnn_create_reduce_nd(
            getattr(lib, f"xnn_reduce_{kind}"),
            lib.xnn_datatype_fp32,
            ffi.NULL,
            ffi.NULL,
            lib.XNN_FLAG_KEEP_DIMS,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; reduce `axes`, which are not negative."""
        dims = _checked(shape)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(dims) for axis in axes):
            raise BackendError(f"axes {list(axes)} are not distinct axes of {list(dims)}")
        sizes = self._ffi.new("size_t[1]")
        status = self._lib.xnn_reshape_reduce_nd(
            self.handle, len(axes), sorted(axes), len(dims), list(dims), sizes, pool.handle
        )
        self._reshaped(status, shape)


class Softmax(Operator):
    """Softmax over rows."""

    call = "NP_SOFTMAX"

    def __init__(self) -> None:
        super().__init__()
        handle = self._ffi.new("xnn_operator_t *")
        self._created(self._lib.xnn_create_softmax_nc_f32(0, handle), handle)

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Take `rows` rows of `channels` values."""
        _checked((rows, channels))
        status = self._lib.xnn_reshape_softmax_nc_f32(
            self.handle, channels, channels, channels, rows, pool.handle
        )
        self._reshaped(status, (rows, channels))


class Pad(Operator):
    """Padding with a constant float32."""

    call = "NP_PAD"

    def __init__(self, value: float) -> None:
        super().__init__()
        ffi = self._ffi
        handle = ffi.new("xnn_operator_t *")
        status = self._lib.xnn_create_constant_pad_nd_x32(ffi.new("float *", value), 0, handle)
        self._created(status, handle)

    def reshape(
        self, shape: Sequence[int], before: Sequence[int], after: Sequence[int], pool: ThreadPool
    ) -> None:
        """Take an input of `shape`, with as many elements to add before and after each axis."""
        dims = _checked(shape)
        if len(before) != len(dims) or len(after) != len(dims) or min(*before, *after, 0) < 0:
            raise BackendError(f"padding {before}, {after} does not fit {list(dims)}")
        status = self._lib.xnn_reshape_constant_pad_nd_x32(
            self.handle, len(dims), list(dims), list(before), list(after), pool.handle
        )
        self._reshaped(status, shape)


class Transpose(Operator):
    """A permutation of axes, of elements of 4 bytes."""

    call = "NP_TRANSPOSE"

    def __init__(self) -> None:
        super().__init__()
        handle = self._ffi.new("xnn_operator_t *")
        self._created(self._lib.xnn_create_transpose_nd_x32(0, handle), handle)

    def reshape(self, shape: Sequence[int], perm: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; axis i of the output is axis ``perm[i]`` of the input."""
        dims = _checked(shape)
        if sorted(perm) != list(range(len(dims))):
            raise BackendError(f"{list(perm)} is not a permutation of the axes of {list(dims)}")
        status = self._lib.xnn_reshape_transpose_nd_x32(
            self.handle, len(dims), list(dims), list(perm), pool.handle
        )
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
        _pixels((height, width), 1, "size")
        handle = self._ffi.new("xnn_operator_t *")
        status = lib.xnn_create_resize_bilinear2d_nhwc(
            lib.xnn_datatype_fp32, height, width, flags, handle
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape` [N, H, W, C]."""
        dims = _checked(shape, 4)
        sizes = self._ffi.new("size_t[1]")
        channels = dims[3]
        status = self._lib.xnn_reshape_resize_bilinear2d_nhwc(
            self.handle, *dims, channels, channels, sizes, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
