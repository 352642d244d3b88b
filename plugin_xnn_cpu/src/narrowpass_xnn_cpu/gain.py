"""What narrow types gain here: for passes that choose them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_planning.program.support import NativeClassifier
from narrowpass_xnn_cpu.lower.matmul.choices import HALF_ROWS, HALF_SIZE
from narrowpass_xnn_cpu.lowering import XnnLowering
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.table.matmul import bf16_passed_over

if TYPE_CHECKING:
    from narrowpass import OpDtypes

_BYTES_PER_SECOND = 30e9
_OPERATIONS_PER_SECOND = 250e9
"""One core reading memory, and multiplying and adding in float32. What counts is their proportion,
which decides whether a product waits for its matrix or for the arithmetic."""


def seconds_saved(node: ir.Node, dtypes: OpDtypes) -> float:
    """Estimate what constant weights save in a narrow type; see `Backend.gain`.

    Other operators compute in float32 from narrow operands, and gain nothing. Rows and pixels that
    are not known count as one.
    """
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    if node.domain or weights is None or weights.const_value is None:
        return 0.0
    shape = tuple(weights.const_value.shape.numpy())
    result = node.outputs[0].shape or ()
    if node.op_type in ("MatMul", "Gemm") and len(shape) == 2:
        rows = math.prod(dim for dim in result[:-1] if isinstance(dim, int))
        return _of_product(rows, math.prod(shape), dtypes)
    if node.op_type == "Conv" and len(shape) in (3, 4) and dtypes.output == "bfloat16":
        depthwise = shape[1] == 1 and node.attributes.get_int("group", 1) > 1
        if target.current().has_bf16_dot and not depthwise:
            pixels = math.prod(dim for dim in (*result[:1], *result[2:]) if isinstance(dim, int))
            wide, narrow = _seconds(pixels, math.prod(shape), pairs=True)
            return wide - narrow
    return 0.0


def _seconds(rows: int, size: int, *, pairs: bool) -> tuple[float, float]:
    """Give the time of a product with weights of float32, and with those of half as many bytes.

    Args:
        rows: that are multiplied.
        size: of the matrix, in elements.
        pairs: whether the arithmetic takes half as long, too.
    """
    reading = size * 4 / _BYTES_PER_SECOND
    computing = 2 * rows * size / _OPERATIONS_PER_SECOND
    return max(reading, computing), max(reading / 2, computing / 2 if pairs else computing)


def _of_product(rows: int, size: int, dtypes: OpDtypes) -> float:
    if dtypes.output == "bfloat16" and not bf16_passed_over(rows, target.current()):
        wide, narrow = _seconds(rows, size, pairs=target.current().has_bf16_dot)
        return wide - narrow
    sums = dtypes.accumulate != "float32" or target.current().half_accumulates_wide
    few = rows <= HALF_ROWS and size >= HALF_SIZE
    if dtypes.output == "float16" and few and sums and target.current().has_half_gemm:
        return size * 2 / _BYTES_PER_SECOND
    return 0.0


class XnnCpuClassifier(NativeClassifier):
    """Keeps wide what has no native kernel."""

    name: ClassVar[str] = "xnn-cpu"

    def lowering(self) -> XnnLowering:
        """Return the lowering of xnn-cpu."""
        return XnnLowering()
