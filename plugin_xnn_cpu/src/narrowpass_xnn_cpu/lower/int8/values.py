"""Quantizations of int8 and uint8 values: QuantizeLinear and DequantizeLinear with one scale.

uint8 tensors are stored as int8 (XOR 0x80), with zero points less by 128, so that their real values
are the same.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.native.problems.quantization import Quantization

INT8_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Dequantized:
    """A float value that is dequantized from an int8 value.

    Attributes:
        real: the float value.
        value: the int8 value.
        quantization: scale and zero point as int8.
    """

    real: ir.Value
    value: ir.Value
    quantization: Quantization


def dequantized(node: ir.Node, facts: Facts) -> Dequantized | None:
    """Return operand and quantization of a DequantizeLinear; None if constant or per channel."""
    given, real = node.inputs[0], node.outputs[0]
    quantization = None if facts.is_constant(real) else quantization_of(node, facts)
    if quantization is None or given is None or facts.is_constant(given):
        return None
    return Dequantized(real, given, quantization)


def quantization_of(node: ir.Node, facts: Facts) -> Quantization | None:
    """Return the quantization of a per-tensor QuantizeLinear or DequantizeLinear of 8 bits.

    None for other nodes, other dtypes, several scales, and parameters that are not constant.
    """
    found = one_scale(node, facts, INT8_TYPES)
    if found is None:
        return None
    scale, zero_point, dtype = found
    return Quantization(scale, zero_point - (128 if dtype == ir.DataType.UINT8 else 0))


def one_scale(
    node: ir.Node, facts: Facts, dtypes: Container[ir.DataType]
) -> tuple[float, int, ir.DataType] | None:
    """Return scale, zero point and dtype of a per-tensor QuantizeLinear or DequantizeLinear.

    None for other nodes, other dtypes, several scales, and parameters that are not constant.

    Args:
        node: of any operator.
        facts: of the graph.
        dtypes: of the integers.
    """
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain:
        return None
    quantizes = node.op_type == "QuantizeLinear"
    whole = node.outputs[0] if quantizes else node.inputs[0]
    real = node.inputs[0] if quantizes else node.outputs[0]
    dtype = facts.dtype(whole)
    if dtype is None or dtype not in dtypes or len(node.inputs) < 2:
        return None
    if facts.dtype(real) != ir.DataType.FLOAT:
        return None
    if node.attributes.get_int("block_size", 0) or node.attributes.get_int("precision", 1) != 1:
        return None
    scale = facts.scalar(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero_point = 0.0 if given is None else facts.scalar(given)
    if scale is None or zero_point is None or facts.dtype(node.inputs[1]) != ir.DataType.FLOAT:
        return None
    if not (np.isfinite(scale) and scale > 0):
        return None
    return scale, int(zero_point), dtype


def quantize_array(numbers: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Quantize float32 as QuantizeLinear does; NaN becomes -128."""
    with np.errstate(all="ignore"):
        steps = np.rint(numbers / np.float32(quantization.scale))
    steps = np.where(np.isnan(steps), -np.inf, steps) + np.float32(quantization.zero_point)
    return np.clip(steps, -128, 127).astype(np.int8)


def dequantize_all(quantization: Quantization) -> np.ndarray:
    """Return the real values of all int8 values, indexed as uint8: float32 [256]."""
    whole = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int32)
    steps = (whole - quantization.zero_point).astype(np.float32)
    with np.errstate(over="ignore"):
        return steps * np.float32(quantization.scale)
