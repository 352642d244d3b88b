"""MatMulInteger of two activations, as in attention with dynamic quantization.

Both are dequantized with a scale of 1 and multiplied as float32 matrices: int8 minus its zero point
is exact in float32. Accumulators of up to `EXACT_TERMS` terms are exact too. Longer ones are
rounded, which is allowed only where a Cast to float32 follows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import Cast, emit_typed
from narrowpass_xnn_cpu.lower.int8 import integers
from narrowpass_xnn_cpu.lower.int8.integers import DynamicDequantize
from narrowpass_xnn_cpu.lower.int8.values import INT8_TYPES
from narrowpass_xnn_cpu.lower.matmul import constant as linear
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules

EXACT_TERMS = (1 << 24) // (255 * 255)
"""Terms of an accumulator up to which float32 is exact: 2^24 / 255^2 = 258."""

_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def _check(op: Op, facts: Facts) -> str | None:
    if op.kind == "MatMulInteger" and facts.is_constant(op.required(1)):
        return integers.check(op, facts)
    for index in (0, 1):
        reason = check_dtype(op.required(index), facts, *INT8_TYPES)
        if reason:
            return reason
        zero = op.input(index + 2)
        if zero is None or facts.scalar(zero) is not None:
            continue
        if facts.dtype(zero) not in INT8_TYPES or facts.dims(zero) not in ((), (1,)):
            return "a zero point of its operands is not one number"
    if op.kind == "MatMulInteger":
        terms = (facts.dims(op.input(0)) or (None,))[-1]
        if not isinstance(terms, int) or terms > EXACT_TERMS:
            return (
                f"float32 accumulators are not exact over {terms or 'an unknown number of'} terms"
            )
    return linear.check_matmul(_float_matmul(op, [_real(op, 0), _real(op, 1)], op.output), facts)


def _real(op: Op, index: int) -> ir.Value:
    """Return a new float32 value for a dequantized operand."""
    given = op.required(index)
    name = f"{given.name} (real for {op.output.name}, {index})"
    return ir.Value(name=name, shape=given.shape, type=_FLOAT)


def _float_matmul(op: Op, operands: list[ir.Value], output: ir.Value) -> Op:
    return Op("MatMul", list(operands), [output], {}, op.version, op.nodes)


def _dequantized(op: Op, index: int, builder: Builder) -> ir.Value:
    facts, given, zero = builder.facts, op.required(index), op.input(index + 2)
    perm = builder.layout(given)
    known = 0.0 if zero is None else facts.scalar(zero)
    if known is None and zero is not None:
        away = builder.slot_of(zero)
    else:
        unsigned = facts.dtype(given) == ir.DataType.UINT8
        away = builder.constant_slot("zero", np.array([int(known or 0) - 128 * unsigned], np.int8))
    one = builder.constant_slot("one", np.ones(1, np.float32))
    real = _real(op, index)
    builder.compute(DynamicDequantize(), [builder.slot_of(given, perm), one, away], real, perm)
    return real


def _lower_to_float32(op: Op, builder: Builder) -> None:
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    linear.lower_matmul(_float_matmul(op, operands, op.output), builder)


def _lower_to_int32(op: Op, builder: Builder) -> None:
    if builder.facts.is_constant(op.required(1)):
        integers.lower_matmul_integer(op, builder)
        return
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    name, shape = f"{op.output.name} (real)", op.output.shape
    exact = ir.Value(name=name, shape=shape, type=_FLOAT)
    linear.lower_matmul(_float_matmul(op, operands, exact), builder)
    perm = builder.layout(exact)
    emit_typed(builder, Cast(), [builder.slot_of(exact, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("computed-integers", lower=_lower_to_float32, check=_check),
    *rules("MatMulInteger", lower=_lower_to_int32, check=_check),
)
