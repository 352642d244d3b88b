"""Bytes and what they stand for: QuantizeLinear and DequantizeLinear with one scale.

Tensors of uint8 are computed with as int8: their bytes have the highest bit turned, and zero points
are less by 128. The numbers that they stand for are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.native.problems.quantization import Quantization

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Dequantized:
    """A float that bytes stand for.

    Attributes:
        real: the float.
        value: the bytes.
        quantization: how they are read, as int8.
    """

    real: ir.Value
    value: ir.Value
    quantization: Quantization


def dequantized(node: ir.Node, facts: Facts) -> Dequantized | None:
    """Tell what a DequantizeLinear makes floats of; None for constants, and several scales."""
    given, real = node.inputs[0], node.outputs[0]
    quantization = None if facts.is_constant(real) else quantization_of(node, facts)
    if quantization is None or given is None or facts.is_constant(given):
        return None
    return Dequantized(real, given, quantization)


def quantization_of(node: ir.Node, facts: Facts) -> Quantization | None:
    """Give how a QuantizeLinear or DequantizeLinear reads bytes; None for one with many scales.

    Also None for other types, and parameters that are computed.
    """
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain:
        return None
    whole = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    real = node.inputs[0] if node.op_type == "QuantizeLinear" else node.outputs[0]
    dtype = facts.dtype(whole)
    if dtype not in BYTES or facts.dtype(real) != ir.DataType.FLOAT or len(node.inputs) < 2:
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
    return Quantization(scale, int(zero_point) - (128 if dtype == ir.DataType.UINT8 else 0))


def to_bytes(numbers: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Quantize float32 as QuantizeLinear does; NaN becomes the least byte."""
    with np.errstate(all="ignore"):
        steps = np.rint(numbers / np.float32(quantization.scale))
    steps = np.where(np.isnan(steps), -np.inf, steps) + np.float32(quantization.zero_point)
    return np.clip(steps, -128, 127).astype(np.int8)


def from_bytes(quantization: Quantization) -> np.ndarray:
    """Give what the bytes 0 to 255 stand for: float32 [256]."""
    whole = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int32)
    steps = (whole - quantization.zero_point).astype(np.float32)
    with np.errstate(over="ignore"):
        return steps * np.float32(quantization.scale)
