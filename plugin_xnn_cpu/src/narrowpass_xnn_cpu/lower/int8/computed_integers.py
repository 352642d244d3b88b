"""MatMulInteger of two computed operands, as attention that is quantized at run time has it.

Both are bytes without their zero points, which float32 has exactly: their matmul is one of floats.
Accumulators of up to `EXACT_TERMS` terms are exact too. Those of more are rounded as floats
are, where a Cast makes float32 of them anyway.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import Cast, emit_typed
from narrowpass_xnn_cpu.lower.int8 import integers
from narrowpass_xnn_cpu.lower.int8.integers import DynamicDequantize
from narrowpass_xnn_cpu.lower.int8.values import BYTES
from narrowpass_xnn_cpu.lower.matmul import constant as linear
from narrowpass_xnn_cpu.lower.op import Op, needs
from narrowpass_xnn_cpu.lower.rule import Rule, rules

EXACT_TERMS = (1 << 24) // (255 * 255)
"""Products of two bytes without their zero points whose sums float32 has exactly: 258."""

_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def _check(op: Op, facts: Facts) -> str | None:
    if op.kind == "MatMulInteger" and facts.is_constant(op.required(1)):
        return integers.check(op, facts)
    for index in (0, 1):
        reason = needs(op.required(index), facts, *BYTES)
        if reason:
            return reason
        zero = op.input(index + 2)
        if zero is None or facts.scalar(zero) is not None:
            continue
        if facts.dtype(zero) not in BYTES or facts.dims(zero) not in ((), (1,)):
            return "a zero point of its operands is not one number"
    if op.kind == "MatMulInteger":
        terms = (facts.dims(op.input(0)) or (None,))[-1]
        if not isinstance(terms, int) or terms > EXACT_TERMS:
            return f"float32 has not all sums over {terms or 'an unknown number of'} terms"
    return linear.check_matmul(_floats(op, [_real(op, 0), _real(op, 1)], op.output), facts)


def _real(op: Op, index: int) -> ir.Value:
    """Give a fresh value for the numbers that an operand stands for."""
    given = op.required(index)
    name = f"{given.name} (real for {op.output.name}, {index})"
    return ir.Value(name=name, shape=given.shape, type=_FLOAT)


def _floats(op: Op, operands: list[ir.Value], output: ir.Value) -> Op:
    return Op("MatMul", list(operands), [output], {}, op.version, op.nodes)


def _dequantized(op: Op, index: int, builder: Builder) -> ir.Value:
    facts, given, zero = builder.facts, op.required(index), op.input(index + 2)
    perm = builder.layout(given)
    known = 0.0 if zero is None else facts.scalar(zero)
    if known is None and zero is not None:
        away = builder.at(zero)
    else:
        unsigned = facts.dtype(given) == ir.DataType.UINT8
        away = builder.constant_slot("zero", np.array([int(known or 0) - 128 * unsigned], np.int8))
    one = builder.constant_slot("one", np.ones(1, np.float32))
    real = _real(op, index)
    builder.compute(DynamicDequantize(), [builder.at(given, perm), one, away], real, perm)
    return real


def _to_floats(op: Op, builder: Builder) -> None:
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    linear.lower_matmul(_floats(op, operands, op.output), builder)


def _to_integers(op: Op, builder: Builder) -> None:
    if builder.facts.is_constant(op.required(1)):
        integers.product(op, builder)
        return
    operands = [_dequantized(op, index, builder) for index in (0, 1)]
    name, shape = f"{op.output.name} (real)", op.output.shape
    exact = ir.Value(name=name, shape=shape, type=_FLOAT)
    linear.lower_matmul(_floats(op, operands, exact), builder)
    perm = builder.layout(exact)
    emit_typed(builder, Cast(), [builder.at(exact, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("computed-integers", lower=_to_floats, check=_check),
    *rules("MatMulInteger", lower=_to_integers, check=_check),
)
