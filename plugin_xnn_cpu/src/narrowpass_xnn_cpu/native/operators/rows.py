"""Operators over whole axes and rows."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import Operator, checked_shape
from narrowpass_xnn_cpu.native.pool import ThreadPool


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
            lib.XNN_FLAG_KEEP_DIMS | self._flags,
            handle,
        )
        self._created(status, handle)

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; reduce `axes`, which are not negative."""
        dims = checked_shape(shape)
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
        self._created(self._lib.xnn_create_softmax_nc_f32(self._flags, handle), handle)

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Take `rows` rows of `channels` values."""
        checked_shape((rows, channels))
        status = self._lib.xnn_reshape_softmax_nc_f32(
            self.handle, channels, channels, channels, rows, pool.handle
        )
        self._reshaped(status, (rows, channels))
