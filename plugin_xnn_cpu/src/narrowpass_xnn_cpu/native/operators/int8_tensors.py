"""XNNPACK's sums, products and means of tensors of int8."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators.base import (
    Operator,
    checked_shape,
)
from narrowpass_xnn_cpu.native.operators.int8 import (
    MULTIPLY_RATIO,
    SUM_RATIO,
    Quantization,
    check_ratio,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool


@dataclass(frozen=True)
class SumS8:
    """The sum of two tensors of int8, as XNNPACK computes it: with integers.

    ``out = clamp((a · own + b · other + bias >> shift) + zero, *limits)``

    Attributes:
        own: factor of the first operand.
        other: factor of the second one.
        bias: added to both, with what rounds.
        shift: bits that are dropped.
        zero: of the result.
        limits: bytes that it is clamped to.
    """

    own: int
    other: int
    bias: int
    shift: int
    zero: int
    limits: tuple[int, int]

    @classmethod
    def of(
        cls, first: Quantization, second: Quantization, made: Quantization, limits: tuple[int, int]
    ) -> SumS8:
        """Give the sum of tensors that `BinaryS8` has taken.

        The larger of both factors has 21 bits.
        """
        ratios = [np.float32(x.scale) / np.float32(made.scale) for x in (first, second)]
        shift = 21 - math.frexp(max(ratios))[1]
        own, other = (round(math.ldexp(float(ratio), shift)) for ratio in ratios)
        bias = (1 << shift - 1) - own * first.zero_point - other * second.zero_point
        return cls(own, other, bias, shift, made.zero_point, limits)

    def turned(self) -> SumS8:
        """Give the sum with its operands the other way round."""
        return dataclasses.replace(self, own=self.other, other=self.own)


class BinaryS8(Operator):
    """A sum, difference or product of two tensors of int8 that broadcast.

    Args:
        kind: ``add``, ``subtract`` or ``multiply``.
        first: of the first operand.
        second: of the second one.
        made: of the result.

    Raises:
        UnfitError: scales that XNNPACK does not compute rightly with.
    """

    call = "NP_BINARY"

    def __init__(
        self, kind: str, first: Quantization, second: Quantization, made: Quantization
    ) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        self.check(kind, first, second, made)
        handle = ffi.new("xnn_operator_t *")
        quantizations = [
            ffi.new("struct xnn_quantization_params *", (item.zero_point, item.scale))
            for item in (first, second, made)
        ]
        status = lib.xnn_create_binary_elementwise_nd(
            getattr(lib, f"xnn_binary_{kind}"),
            lib.xnn_datatype_qint8,
            *quantizations,
            self._flags,
            handle,
        )
        self._created(status, handle)

    @staticmethod
    def check(kind: str, first: Quantization, second: Quantization, made: Quantization) -> None:
        """Raise `UnfitError` for scales that XNNPACK does not compute rightly with."""
        for item in (first, second, made):
            item.check()
        if kind == "multiply":
            ratio = first.scale * second.scale / made.scale
            check_ratio("first scale * second scale / output scale", ratio, MULTIPLY_RATIO)
            return
        for item in (first, second):
            check_ratio("input scale / output scale", item.scale / made.scale, SUM_RATIO)

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


class MeanS8(Operator):
    """A mean of int8 over axes, which stay as dimensions of 1.

    Args:
        given: of the input.
        made: of the result.

    Raises:
        UnfitError: scales that XNNPACK does not compute rightly with.
    """

    call = "NP_REDUCE_S8"

    MOST_ELEMENTS = (2**31 - 1) // 256
    """Elements of one mean, whose sum is an int32."""

    def __init__(self, given: Quantization, made: Quantization) -> None:
        super().__init__()
        ffi, lib = self._ffi, self._lib
        self.check(given, made)
        handle = ffi.new("xnn_operator_t *")
        quantizations = [
            ffi.new("struct xnn_quantization_params *", (item.zero_point, item.scale))
            for item in (given, made)
        ]
        status = lib.xnn_create_reduce_nd(
            lib.xnn_reduce_mean,
            lib.xnn_datatype_qint8,
            *quantizations,
            lib.XNN_FLAG_KEEP_DIMS | self._flags,
            handle,
        )
        self._created(status, handle)

    @staticmethod
    def check(given: Quantization, made: Quantization) -> None:
        """Raise `UnfitError` for scales that XNNPACK does not compute rightly with."""
        given.check()
        made.check()
        check_ratio("input scale / output scale", given.scale / made.scale, SUM_RATIO)

    def reshape(self, shape: Sequence[int], axes: Sequence[int], pool: ThreadPool) -> None:
        """Take an input of `shape`; reduce `axes`, which are not negative."""
        dims = checked_shape(shape)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(dims) for axis in axes):
            raise BackendError(f"axes {list(axes)} are not distinct axes of {list(dims)}")
        if math.prod(dims[axis] for axis in axes) > self.MOST_ELEMENTS:
            raise BackendError(f"a mean over axes {list(axes)} of {list(dims)} has too many terms")
        sizes = self._ffi.new("size_t[1]")
        status = self._lib.xnn_reshape_reduce_nd(
            self.handle, len(axes), sorted(axes), len(dims), list(dims), sizes, pool.handle
        )
        self._reshaped(status, shape)
        self.workspace = sizes[0]
