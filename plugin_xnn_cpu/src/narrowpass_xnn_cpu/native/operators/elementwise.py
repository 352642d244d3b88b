"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import Operator, checked_range, checked_shape
from narrowpass_xnn_cpu.native.pool import ThreadPool


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
            params.clamp.min, params.clamp.max = checked_range((parameters[0], parameters[1]))
        elif kind == "elu":
            (params.elu.alpha,) = parameters
        elif kind == "leaky_relu":
            (params.leaky_relu.negative_slope,) = parameters
        handle = ffi.new("xnn_operator_t *")
        fp32 = lib.xnn_datatype_fp32
        operator = getattr(lib, f"xnn_unary_{kind}")
        null = ffi.NULL
        status = lib.xnn_create_unary_elementwise_nc(
            operator, fp32, fp32, params, null, null, null, self._flags, handle
        )
        self._created(status, handle)

    def reshape(self, count: int, pool: ThreadPool) -> None:
        """Take `count` elements."""
        checked_shape((count,))
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
            operator, lib.xnn_datatype_fp32, null, null, null, self._flags, handle
        )
        self._created(status, handle)

    def reshape(self, first: Sequence[int], second: Sequence[int], pool: ThreadPool) -> None:
        """Take operands of these shapes, which broadcast together."""
        a, b = checked_shape(first), checked_shape(second)
        for x, y in zip(reversed(a), reversed(b), strict=False):
            if x != y and 1 not in (x, y):
                raise BackendError(f"shapes {list(a)} and {list(b)} do not broadcast together")
        status = self._lib.xnn_reshape_binary_elementwise_nd(
            self.handle, len(a), list(a), len(b), list(b), pool.handle
        )
        self._reshaped(status, (a, b))
