"""Estimated time that narrow weights save, for passes that choose the types of nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_planning.program.support import NativeClassifier
from narrowpass_xnn_cpu.lower.matmul.choices import HALF_ROWS, HALF_SIZE
from narrowpass_xnn_cpu.lowering import XnnLowering
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.table.matmul import bf16_reject_reason

if TYPE_CHECKING:
    from narrowpass import OpDtypes

_BYTES_PER_SECOND = 30e9
_OPERATIONS_PER_SECOND = 250e9
"""Memory bandwidth and float32 multiplications and additions of one core (a roofline model): their
ratio decides whether a matmul is bound by reading its matrix or by arithmetic."""


def seconds_saved(node: ir.Node, dtypes: OpDtypes) -> float:
    """Estimate the seconds that constant weights of a narrow type save; see `Backend.gain`.

    Other operators upcast narrow operands to float32 and gain nothing. Unknown numbers of rows and
    pixels count as one.
    """
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    if node.domain or weights is None or weights.const_value is None:
        return 0.0
    shape = tuple(weights.const_value.shape.numpy())
    result = node.outputs[0].shape or ()
    if node.op_type in ("MatMul", "Gemm") and len(shape) == 2:
        rows = math.prod(dim for dim in result[:-1] if isinstance(dim, int))
        return _matmul_seconds_saved(rows, math.prod(shape), dtypes)
    if node.op_type == "Conv" and len(shape) in (3, 4) and dtypes.output == "bfloat16":
        depthwise = shape[1] == 1 and node.attributes.get_int("group", 1) > 1
        if target.current().has_bf16_dot and not depthwise:
            pixels = math.prod(dim for dim in (*result[:1], *result[2:]) if isinstance(dim, int))
            wide, narrow = _seconds(pixels, math.prod(shape), pairs=True)
            return wide - narrow
    return 0.0


def _seconds(rows: int, size: int, *, pairs: bool) -> tuple[float, float]:
    """Return the seconds of a matmul with float32 weights, and with 16-bit weights.

    Args:
        rows: number of rows.
        size: elements of the matrix.
        pairs: whether arithmetic in 16 bits has twice the rate, too.
    """
    reading = size * 4 / _BYTES_PER_SECOND
    computing = 2 * rows * size / _OPERATIONS_PER_SECOND
    return max(reading, computing), max(reading / 2, computing / 2 if pairs else computing)


def _matmul_seconds_saved(rows: int, size: int, dtypes: OpDtypes) -> float:
    if dtypes.output == "bfloat16" and not bf16_reject_reason(rows, target.current()):
        wide, narrow = _seconds(rows, size, pairs=target.current().has_bf16_dot)
        return wide - narrow
    accumulates = dtypes.accumulate != "float32" or target.current().float16_accumulates_in_float32
    few = rows <= HALF_ROWS and size >= HALF_SIZE
    if dtypes.output == "float16" and few and accumulates and target.current().has_float16_gemm:
        return size * 2 / _BYTES_PER_SECOND
    return 0.0


class XnnCpuClassifier(NativeClassifier):
    """Keeps nodes without a native kernel in their original type."""

    name: ClassVar[str] = "xnn-cpu"

    def lowering(self) -> XnnLowering:
        """Return the lowering of xnn-cpu."""
        return XnnLowering()
