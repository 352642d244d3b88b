"""QuantizeLinear and DequantizeLinear of 16 bits with one scale.

Nothing is multiplied as such integers: what lies between is computed in float32. A QuantizeLinear
whose only reader is the DequantizeLinear of the same integers rounds floats to what these stand
for, in one pass: `fake quantize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.matching import Group, producer
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
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


class Conversion(Step):
    """Floats to integers of 16 bits, back, or both: NaN becomes the least integer.

    Args:
        given: what is converted.
        output: what it becomes.
        sixteen: how the integers are read.
    """

    in_place: Sequence[int] = ()

    def __init__(self, given: Slot, output: Slot, sixteen: Sixteen) -> None:
        super().__init__([given], output)
        self._sixteen = sixteen
        floats = given.dtype.kind == "f", output.dtype.kind == "f"
        self.kernel, self._call = {
            (True, False): ("quantize", "NP_QUANTIZE16"),
            (False, True): ("dequantize", "NP_DEQUANTIZE16"),
            (True, True): ("fake quantize", "NP_FAKE_QUANTIZE"),
        }[floats]
        if floats == (True, True):
            self.in_place = (0,)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        found = self._sixteen
        params = int16_kernels.int16(
            elements(shape), found.scale, found.zero_point, is_signed=found.is_signed
        )
        return Run(shape, self._call, params=params)


def match(node: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a QuantizeLinear of 16 bits and the DequantizeLinear that alone reads it."""
    source = producer(node.inputs[0], "QuantizeLinear")
    if source is None or facts.only_user(source.outputs[0]) is not node:
        return None
    made = sixteen_of(source, facts)
    if made is None or made != sixteen_of(node, facts) or facts.is_constant(source.inputs[0]):
        return None
    return Group("fake-quantize", [source.inputs[0]], [source, node], {"sixteen": made})


@lowers("fake-quantize", check=needs_floats)
def _fake_quantize(op: Op, builder: Builder) -> None:
    convert(op, builder, op.attributes["sixteen"])


def convert(op: Op, builder: Builder, sixteen: Sixteen) -> None:
    """Add the conversion of what `op` reads, in whatever order of axes it has."""
    given = op.required(0)
    perm = builder.layout(given)
    step = Conversion(builder.at(given, perm), builder.new(op.output), sixteen)
    builder.emit(step, op.output, perm)
