"""QuantizeLinear and DequantizeLinear of int8 and uint8 with one scale."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Dims, Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import elementwise
from narrowpass_xnn_cpu.lower.fusion.matching import producer
from narrowpass_xnn_cpu.lower.int8.int16 import convert, int16_quantization
from narrowpass_xnn_cpu.lower.int8.values import INT8_TYPES, quantization_of
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.problems.quantization import Quantization


@record
class Quantize(Computation):
    """QuantizeLinear to int8; NaN becomes -128.

    Operands are the floats and, optionally, a row of factors that they are multiplied by first.

    Attributes:
        quantization: of the result.
    """

    mnemonic = "quantize"
    quantization: Quantization

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, *factors = shapes
        columns = shape[-1] if factors else 0
        if factors and elements(factors[0]) != columns:
            raise BackendError(f"factors of {list(factors[0])} do not fit {list(shape)}")
        if not elements(shape):
            return Run(shape)
        scale, zero_point = self.quantization.scale, self.quantization.zero_point
        params = kernels.quantize(elements(shape), scale, zero_point, columns)
        return Run(shape, "NP_QUANTIZE", params=params)


@record
class Dequantize(Computation):
    """DequantizeLinear of int8.

    Attributes:
        quantization: of the operand.
    """

    mnemonic = "dequantize"
    quantization: Quantization

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        scale, zero_point = self.quantization.scale, self.quantization.zero_point
        params = kernels.dequantize(elements(shape), scale, zero_point)
        return Run(shape, "NP_DEQUANTIZE", params=params)


def _check(op: Op, facts: Facts) -> str | None:
    wide = int16_quantization(op.nodes[0], facts) is not None
    if wide and facts.rank(op.input(0)) is None:
        return "the rank of its input is not known"
    if wide:
        return None
    if op.kind == "QuantizeLinear":
        reason = check_floats(op, facts)
    else:
        reason = check_dtype(op.required(0), facts, *INT8_TYPES)
    if reason:
        return reason
    if quantization_of(op.nodes[0], facts) is None:
        return "its scale or zero point is computed, of several channels or blocks, or not float32"
    return None


def _quantize(op: Op, builder: Builder) -> None:
    wide = int16_quantization(op.nodes[0], builder.facts)
    if wide is not None:
        convert(op, builder, wide)
        return
    quantization = quantization_of(op.nodes[0], builder.facts)
    if quantization is None:
        raise ValueError("a QuantizeLinear was checked, and has no quantization")
    given = op.required(0)
    perm = builder.layout(given)
    builder.compute(Quantize(quantization), [builder.slot_of(given, perm)], op.output, perm)


def match_scaled_quantize(node: ir.Node, facts: Facts, version: int) -> Op | None:
    """Match a QuantizeLinear and the Mul by a constant row before it; fusion is exact."""
    mul = producer(node.inputs[0], "Mul")
    quantization = quantization_of(node, facts)
    if mul is None or quantization is None or facts.only_user(mul.outputs[0]) is not node:
        return None
    for given, factors in (mul.inputs, tuple(reversed(mul.inputs))):
        if given is None or factors is None or facts.is_constant(given):
            continue
        if not facts.is_constant(factors) or not _is_row(facts.dims(factors), facts.dims(given)):
            continue
        if {facts.dtype(value) for value in (given, factors)} == {ir.DataType.FLOAT}:
            attributes = {"quantization": quantization}
            inputs = [given, factors]
            return Op("quantize-rows", inputs, node.outputs, attributes, version, [node, mul])
    return None


def _is_row(factors: Dims | None, given: Dims | None) -> bool:
    """Return whether factors are known to be one for each element of the last axis."""
    if not factors or not given or len(factors) > len(given):
        return False
    return factors[-1] == given[-1] and all(size == 1 for size in factors[:-1])


def _quantize_rows(op: Op, builder: Builder) -> None:
    given, factors = op.required(0), op.required(1)
    perm = identity(builder.rank(given))
    slots = [builder.slot_of(given, perm), builder.slot_of(factors)]
    builder.compute(Quantize(op.attributes["quantization"]), slots, op.output, perm)


def _dequantize_node(op: Op, builder: Builder) -> None:
    wide = int16_quantization(op.nodes[0], builder.facts)
    if wide is not None:
        convert(op, builder, wide)
        return
    quantization = quantization_of(op.nodes[0], builder.facts)
    if quantization is None:
        raise ValueError("a DequantizeLinear was checked, and has no quantization")
    dequantize(op, builder, quantization)


def _dequantize(op: Op, builder: Builder) -> None:
    dequantize(op, builder, op.attributes["quantization"])


def dequantize(op: Op, builder: Builder, quantization: Quantization) -> None:
    """Emit the conversion of int8 to float32 in the layout of the operand."""
    elementwise(op, builder, Dequantize(quantization))


RULES: tuple[Rule, ...] = (
    *rules("QuantizeLinear", lower=_quantize, check=_check),
    *rules("quantize-rows", lower=_quantize_rows, check=check_floats),
    *rules("DequantizeLinear", lower=_dequantize_node, check=_check),
    *rules("dequantize", lower=_dequantize, check=lambda op, facts: None),
)
