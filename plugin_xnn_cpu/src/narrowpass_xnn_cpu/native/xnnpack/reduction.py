"""XNNPACK's reductions over axes, and softmax over rows."""

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


class Reduce(XnnOperator):
    """A reduction over axes, which are kept as dimensions of 1.

    Args:
        kind: as in ``enum xnn_reduce_operator``; ``mean`` for int8.
        quantizations: of the int8 input and result; None for float32.

    Raises:
        UnfitError: scales that XNNPACK does not support.
    """

    kind = "reduce"

    def __init__(
        self, kind: str, quantizations: tuple[Quantization, Quantization] | None = None
    ) -> None:
        super().__init__()
        lib = self._lib
        self.call = "NP_REDUCE" if quantizations is None else "NP_REDUCE_S8"
        self._int8 = quantizations is not None
        if quantizations is not None:
            check_mean_scales(*quantizations)
        self._create(
            "xnn_create_reduce_nd",
            getattr(lib, f"xnn_reduce_{kind}"),
            lib.xnn_datatype_qint8 if self._int8 else lib.xnn_datatype_fp32,
            *map(self._params_of, quantizations or (None, None)),
            flags=lib.XNN_FLAG_KEEP_DIMS,
        )

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Reshape for an input of `shape`; reduce `axes`, which are not negative."""
        dims = checked_shape(shape)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(dims) for axis in axes):
            raise BackendError(f"axes {list(axes)} are not distinct axes of {list(dims)}")
        if self._int8 and math.prod(dims[axis] for axis in axes) > _MOST_ELEMENTS:
            raise BackendError(f"a mean over axes {list(axes)} of {list(dims)} has too many terms")
        workspace = self._ffi.new("size_t[1]")
        sizes = len(axes), sorted(axes), len(dims), list(dims)
        self._reshape("xnn_reshape_reduce_nd", shape, *sizes, workspace, pool.handle)
        if self._int8:
            self.workspace = workspace[0]


class Softmax(XnnOperator):
    """Softmax over rows."""

    call = "NP_SOFTMAX"
    kind = "softmax"

    def __init__(self) -> None:
        super().__init__()
        self._create("xnn_create_softmax_nc_f32")

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Reshape for `rows` rows of `channels` values."""
        checked_shape((rows, channels))
        sizes = channels, channels, channels, rows
        self._reshape("xnn_reshape_softmax_nc_f32", (rows, channels), *sizes, pool.handle)
