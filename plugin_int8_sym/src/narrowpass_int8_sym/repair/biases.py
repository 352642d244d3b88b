"""int32 biases: their scale must be the scale of the operand times that of the weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from narrowpass.runtime.quantization import Violation
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.operators import Operator
from narrowpass_int8_sym.repair.quantization import (
    INT32,
    Array,
    Quantization,
    is_node,
    read_qdq,
)
from narrowpass_ir.constants import constant_tensor

_ACCUMULATOR = 2.0**31
"""The range of int32 accumulators."""

_NEAR = 2.0**-21
"""The largest relative difference of scales that is rounding."""


def rescale(editor: Editor, operator: Operator) -> str | Violation | None:
    """Requantize a bias to the scale of the accumulators, if that is exact to the last bit.

    Returns:
        A description of the change; a violation where none is possible; None where none is needed.
    """
    node = operator.node
    value = node.inputs[2] if len(node.inputs) > 2 else None
    dequantizing = None if value is None else value.producer()
    if dequantizing is None or not is_node(dequantizing, "DequantizeLinear"):
        return None
    tensor = constant_tensor(dequantizing.inputs[0])
    if tensor is None or operator.weight is None:
        return None
    how = read_qdq(dequantizing)
    if isinstance(how, str):
        return None
    integers = np.asarray(tensor.numpy())
    wanted = _wanted(operator, integers)
    if wanted is None:
        return None
    if how.dtype == INT32 and not how.zero_point.any():
        differing = _differing(how, wanted, integers)
        if differing is None:
            return None
    else:
        differing = float(np.max(how.scale)), float(np.max(wanted.scale))
    numbers = how.dequantized(integers)
    scale, _ = wanted.along(integers)
    exact = np.rint(numbers.astype(np.float64) / scale)
    if np.abs(exact).max(initial=0) < _ACCUMULATOR:
        rescaled = exact.astype(np.int32)
        if np.array_equal(wanted.dequantized(rescaled), numbers):
            name = dequantizing.inputs[0].name or "bias" if dequantizing.inputs[0] else "bias"
            stored = editor.constant(node, name, rescaled)
            editor.replace_input(node, 2, editor.dequantize(node, stored, wanted))
            if not dequantizing.outputs[0].uses():
                editor.remove(dequantizing)
            return "its bias has the scale of its accumulators"
    return Violation("scale of the bias", *differing)


def _wanted(operator: Operator, integers: Array) -> Quantization | None:
    weight = operator.weight
    if weight is None or not operator.operands or operator.operands[0].scale.size != 1:
        return None  # channels of the operand are summed: no scale is that of their accumulators
    alpha = operator.node.attributes.get_float("alpha", 1.0)
    beta = operator.node.attributes.get_float("beta", 1.0)
    if operator.node.op_type == "Gemm" and (alpha <= 0 or beta <= 0):
        return None
    factor = np.float32(alpha / beta) if operator.node.op_type == "Gemm" else np.float32(1)
    scale = np.asarray(operator.operands[0].scale * weight.scale * factor, np.float32)
    if not (scale > 0).all():
        return None
    axis = None if scale.ndim == 0 else integers.ndim - 1
    if axis is not None and (axis < 0 or integers.shape[axis] != scale.size):
        return None
    return Quantization(scale, np.zeros_like(scale, np.int32), INT32, axis)


def _differing(
    how: Quantization, wanted: Quantization, integers: Array
) -> tuple[float, float] | None:
    """Return the scales that differ most, own and wanted; None where they are equal."""
    mine, _ = replace(how).along(integers)
    right, _ = wanted.along(integers)
    ratios = np.abs(mine.astype(np.float64) / right - 1)
    if ratios.max() <= _NEAR:
        return None
    at = np.unravel_index(int(ratios.argmax()), ratios.shape)
    both = np.broadcast_arrays(mine, right)
    return float(both[0][at]), float(both[1][at])
