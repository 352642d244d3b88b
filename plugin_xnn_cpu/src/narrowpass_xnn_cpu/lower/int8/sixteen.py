"""QuantizeLinear and DequantizeLinear of 16 bits with one scale.

Nothing is multiplied as such integers: what lies between is computed in float32. A QuantizeLinear
whose only reader is the DequantizeLinear of the same integers rounds floats to what these stand
for, in one pass: `fake quantize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import elementwise
from narrowpass_xnn_cpu.lower.fusion.matching import Group, producer
from narrowpass_xnn_cpu.lower.op import Op, needs_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedOp
from narrowpass_xnn_cpu.native import int16_kernels

_WIDE = {ir.DataType.INT16: True, ir.DataType.UINT16: False}


@dataclass(frozen=True)
class Sixteen:
    """How integers of 16 bits are read.

    Attributes:
        scale: of all of them.
        zero_point: of all of them.
        is_signed: whether they are int16, and not uint16.
    """

    scale: float
    zero_point: int
    is_signed: bool


def sixteen_of(node: ir.Node, facts: Facts) -> Sixteen | None:
    """Give how a QuantizeLinear or DequantizeLinear reads 16 bits; None for any other one."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain:
        return None
    quantizes = node.op_type == "QuantizeLinear"
    whole = node.outputs[0] if quantizes else node.inputs[0]
    real = node.inputs[0] if quantizes else node.outputs[0]
    dtype = facts.dtype(whole)
    if dtype not in _WIDE or facts.dtype(real) != ir.DataType.FLOAT or len(node.inputs) < 2:
        return None
    if node.attributes.get_int("block_size", 0) or node.attributes.get_int("precision", 1) != 1:
        return None
    given = node.inputs[2] if len(node.inputs) > 2 else None
    scale = facts.scalar(node.inputs[1])
    zero_point = 0.0 if given is None else facts.scalar(given)
    if scale is None or zero_point is None or facts.dtype(node.inputs[1]) != ir.DataType.FLOAT:
        return None
    if not (np.isfinite(scale) and scale > 0):
        return None
    return Sixteen(scale, int(zero_point), _WIDE[dtype])


_CONVERSIONS = {
    (True, False): ("quantize", "NP_QUANTIZE16"),
    (False, True): ("dequantize", "NP_DEQUANTIZE16"),
    (True, True): ("fake quantize", "NP_FAKE_QUANTIZE"),
}
"""Names and calls, by whether the operand and the result are float32."""


@dataclass(frozen=True)
class Convert16(Computation):
    """float32 to integers of 16 bits, back, or both: NaN becomes the least integer.

    Attributes:
        sixteen: how the integers are read.
    """

    mnemonic = "convert_16"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    sixteen: Sixteen

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return _CONVERSIONS[_floats(op)][0]

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        found = self.sixteen
        params = int16_kernels.quantize16(
            elements(shape), found.scale, found.zero_point, is_signed=found.is_signed
        )
        return Run(shape, _CONVERSIONS[_floats(step.op)][1], params=params)


def _floats(op: LoweredOp) -> tuple[bool, bool]:
    return op.operands[0].dtype.kind == "f", op.output.dtype.kind == "f"


def match(node: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a QuantizeLinear of 16 bits and the DequantizeLinear that alone reads it."""
    source = producer(node.inputs[0], "QuantizeLinear")
    if source is None or facts.only_user(source.outputs[0]) is not node:
        return None
    made = sixteen_of(source, facts)
    if made is None or made != sixteen_of(node, facts) or facts.is_constant(source.inputs[0]):
        return None
    return Group("fake-quantize", [source.inputs[0]], [source, node], {"sixteen": made})


def _fake_quantize(op: Op, builder: Builder) -> None:
    convert(op, builder, op.attributes["sixteen"])


def convert(op: Op, builder: Builder, sixteen: Sixteen) -> None:
    """Emit the conversion of what `op` reads, in whatever order of axes it has."""
    elementwise(op, builder, Convert16(sixteen))


RULES: tuple[Rule, ...] = (*rules("fake-quantize", lower=_fake_quantize, check=needs_floats),)
