"""QuantizeLinear and DequantizeLinear of int16 and uint16 with one scale.

Operators between them are computed in float32. A QuantizeLinear whose only reader is the
DequantizeLinear of the same integers is computed in one pass over float32: `fake quantize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import elementwise
from narrowpass_xnn_cpu.lower.fusion.matching import Group, producer
from narrowpass_xnn_cpu.lower.int8.values import one_scale
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

_WIDE = {ir.DataType.INT16: True, ir.DataType.UINT16: False}


@dataclass(frozen=True)
class Int16Quantization:
    """Scale, zero point and signedness of 16-bit integers.

    Attributes:
        scale: of all elements.
        zero_point: of all elements.
        is_signed: whether the dtype is int16, not uint16.
    """

    scale: float
    zero_point: int
    is_signed: bool


def int16_quantization(node: ir.Node, facts: Facts) -> Int16Quantization | None:
    """Return the quantization of a 16-bit QuantizeLinear or DequantizeLinear; else None."""
    found = one_scale(node, facts, _WIDE)
    if found is None:
        return None
    scale, zero_point, dtype = found
    return Int16Quantization(scale, zero_point, _WIDE[dtype])


_CONVERSIONS = {
    (True, False): ("quantize", "NP_QUANTIZE16"),
    (False, True): ("dequantize", "NP_DEQUANTIZE16"),
    (True, True): ("fake quantize", "NP_FAKE_QUANTIZE"),
}
"""Names and calls, by whether the operand and the result are float32."""


@record
class ConvertInt16(Computation):
    """float32 to int16 or uint16, back, or both (fake quantization); NaN becomes the least integer.

    Attributes:
        quantization: of the integers.
    """

    mnemonic = "convert_int16"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    quantization: Int16Quantization

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return _CONVERSIONS[_are_float(op)][0]

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        found = self.quantization
        params = kernels.quantize16(
            elements(shape), found.scale, found.zero_point, is_signed=found.is_signed
        )
        return Run(shape, _CONVERSIONS[_are_float(step.op)][1], params=params)


def _are_float(op: LoweredOp) -> tuple[bool, bool]:
    return op.operands[0].dtype.kind == "f", op.output.dtype.kind == "f"


def match(node: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a 16-bit QuantizeLinear and the DequantizeLinear that alone reads it."""
    source = producer(node.inputs[0], "QuantizeLinear")
    if source is None or facts.only_user(source.outputs[0]) is not node:
        return None
    found = int16_quantization(source, facts)
    if found is None or found != int16_quantization(node, facts):
        return None
    if facts.is_constant(source.inputs[0]):
        return None
    return Group("fake-quantize", [source.inputs[0]], [source, node], {"quantization": found})


def _fake_quantize(op: Op, builder: Builder) -> None:
    convert(op, builder, op.attributes["quantization"])


def convert(op: Op, builder: Builder, quantization: Int16Quantization) -> None:
    """Emit the conversion of the input of `op` in its layout."""
    elementwise(op, builder, ConvertInt16(quantization))


RULES: tuple[Rule, ...] = (*rules("fake-quantize", lower=_fake_quantize, check=check_floats),)
