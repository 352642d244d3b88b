"""XNNPACK's elementwise operators, and its mean of int8 over axes.

Reductions of other types are our own: `NP_TYPED_REDUCTION`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.problems.bounds import checked_range, checked_shape
from narrowpass_xnn_cpu.native.problems.quantization import (
    ADD_RATIO,
    MULTIPLY_RATIO,
    Quantization,
    check_ratio,
)
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator


class XnnUnary(XnnOperator):
    """An elementwise operator with one operand.

    Args:
        kind: as in ``enum xnn_unary_operator``, such as ``sigmoid``.
        parameters: the bounds of ``clamp``, or the slope of ``elu`` and ``leaky_relu``.
    """

    call = "NP_UNARY"
    kind = "unary"

    def __init__(self, kind: str, parameters: Sequence[float] = ()) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        params = ffi.new("union xnn_unary_params *")
        if kind == "clamp":
            params.clamp.min, params.clamp.max = checked_range((parameters[0], parameters[1]))
        elif kind == "elu":
            (params.elu.alpha,) = parameters
        elif kind == "leaky_relu":
            (params.leaky_relu.negative_slope,) = parameters
        dtypes = lib.xnn_datatype_fp32, lib.xnn_datatype_fp32
        operator = getattr(lib, f"xnn_unary_{kind}")
        null = ffi.NULL
        self._create("xnn_create_unary_elementwise_nc", operator, *dtypes, params, null, null, null)

    def reshape(self, count: int, pool: ThreadPool) -> None:
        """Reshape for `count` elements."""
        checked_shape((count,))
        function = "xnn_reshape_unary_elementwise_nc"
        self._reshape(function, count, count, 1, 1, 1, pool.handle)


class XnnBinary(XnnOperator):
    """An elementwise operator with two operands that broadcast.

    Args:
        kind: as in ``enum xnn_binary_operator``; ``add``, ``subtract`` or ``multiply`` for int8.
        quantizations: of both operands of int8 and of the result; None for float32.

    Raises:
        UnfitError: scales that XNNPACK does not support.
    """

    call = "NP_BINARY"
    kind = "binary"

    def __init__(
        self,
        kind: str,
        quantizations: tuple[Quantization, Quantization, Quantization] | None = None,
    ) -> None:
        super().__init__()
        lib = self._lib
        if quantizations is not None:
            check_scales(kind, *quantizations)
        self._create(
            "xnn_create_binary_elementwise_nd",
            getattr(lib, f"xnn_binary_{kind}"),
            lib.xnn_datatype_fp32 if quantizations is None else lib.xnn_datatype_qint8,
            *map(self._params_of, quantizations or (None, None, None)),
        )

    def reshape(self, first: Sequence[int], second: Sequence[int], pool: ThreadPool) -> None:
        """Reshape for operands of these shapes, which broadcast together."""
        a, b = checked_shape(first), checked_shape(second)
        for x, y in zip(reversed(a), reversed(b), strict=False):
            if x != y and 1 not in (x, y):
                raise BackendError(f"shapes {list(a)} and {list(b)} do not broadcast together")
        function, sizes = "xnn_reshape_binary_elementwise_nd", (len(a), list(a), len(b), list(b))
        self._reshape(function, (a, b), *sizes, pool.handle)


def check_scales(
    kind: str, first: Quantization, second: Quantization, output: Quantization
) -> None:
    """Raise `UnfitError` for scales outside of XNNPACK's range for `kind`."""
    for item in (first, second, output):
        item.check()
    if kind == "multiply":
        ratio = first.scale * second.scale / output.scale
        check_ratio("first scale * second scale / output scale", ratio, MULTIPLY_RATIO)
        return
    for item in (first, second):
        check_ratio("input scale / output scale", item.scale / output.scale, ADD_RATIO)


_MOST_ELEMENTS = (2**31 - 1) // 256
"""Terms of an int8 mean, at most: the headroom of its int32 accumulator."""


def check_mean_scales(source: Quantization, result: Quantization) -> None:
    """Raise `UnfitError` for scales outside of XNNPACK's range for a mean."""
    source.check()
    result.check()
    check_ratio("input scale / output scale", source.scale / result.scale, ADD_RATIO)


class XnnMean(XnnOperator):
    """A mean of int8 over axes, which are kept as dimensions of 1.

    Args:
        source: quantization of the input.
        result: quantization of the result.

    Raises:
        UnfitError: scales that XNNPACK does not support.
    """

    call = "NP_REDUCE_S8"
    kind = "reduce"

    def __init__(self, source: Quantization, result: Quantization) -> None:
        super().__init__()
        lib = self._lib
        check_mean_scales(source, result)
        self._create(
            "xnn_create_reduce_nd",
            lib.xnn_reduce_mean,
            lib.xnn_datatype_qint8,
            self._params_of(source),
            self._params_of(result),
            flags=lib.XNN_FLAG_KEEP_DIMS,
        )

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Reshape for an input of `shape`; reduce `axes`, which are not negative."""
        dims = checked_shape(shape)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(dims) for axis in axes):
            raise BackendError(f"axes {list(axes)} are not distinct axes of {list(dims)}")
        if math.prod(dims[axis] for axis in axes) > _MOST_ELEMENTS:
            raise BackendError(f"a mean over axes {list(axes)} of {list(dims)} has too many terms")
        workspace = self._ffi.new("size_t[1]")
        sizes = len(axes), sorted(axes), len(dims), list(dims)
        self._reshape("xnn_reshape_reduce_nd", shape, *sizes, workspace, pool.handle)
        self.workspace = workspace[0]
