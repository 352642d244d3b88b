"""XNNPACK's mean of int8 over axes. Reductions of other types are our own: `NP_TYPED_REDUCTION`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.problems.quantization import ADD_RATIO, Quantization, check_ratio
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator

_MOST_ELEMENTS = (2**31 - 1) // 256
"""Terms of an int8 mean, at most: the headroom of its int32 accumulator."""


def check_mean_scales(source: Quantization, result: Quantization) -> None:
    """Raise `UnfitError` for scales outside of XNNPACK's range for a mean."""
    source.check()
    result.check()
    check_ratio("input scale / output scale", source.scale / result.scale, ADD_RATIO)


class Mean(XnnOperator):
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
