"""Comparisons, logical and bitwise operators, BitShift, Mod, Sign, IsNaN and IsInf."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import (
    ANY,
    INTEGERS,
    NUMBERS,
    TypedBinary,
    TypedUnary,
    check_same_dtype,
    emit_typed,
    layout_of,
    typed_operand,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules

_COMPARISONS = {
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less or equal",
    "Greater": "less",
    "GreaterOrEqual": "less or equal",
}
"""Names of ``NP_BINARY_*``; for Greater and GreaterOrEqual the operands are swapped."""

_LOGIC = {"And": "and", "Or": "or", "Xor": "xor"}
_BITWISE = {"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor"}


def _check_binary(op: Op, facts: Facts, *dtypes: ir.DataType) -> str | None:
    if op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    return check_same_dtype([op.required(0), op.required(1)], facts, *dtypes)


def _compare(op: Op, builder: Builder) -> None:
    values = [op.required(0), op.required(1)]
    perm = layout_of(builder, values)
    # Operands of a narrow dtype are rounded to it before they are compared.
    first, second = (typed_operand(builder, value, perm, rounded=True) for value in values)
    if op.kind.startswith("Greater"):
        first, second = second, first
    emit_typed(builder, TypedBinary(_COMPARISONS[op.kind]), [first, second], op.output, perm)


def _logic(op: Op, builder: Builder) -> None:
    emit_binary(op, builder, _LOGIC[op.kind])


def _bitwise(op: Op, builder: Builder) -> None:
    emit_binary(op, builder, _BITWISE[op.kind])


def _shift(op: Op, builder: Builder) -> None:
    emit_binary(op, builder, "shl" if op.attributes["direction"] == "LEFT" else "shr")


def _check_mod(op: Op, facts: Facts) -> str | None:
    return _check_binary(op, facts, *NUMBERS)


def _mod(op: Op, builder: Builder) -> None:
    emit_binary(op, builder, "fmod" if op.get("fmod", 0) else "mod")


def emit_binary(op: Op, builder: Builder, name: str) -> None:
    """Emit a binary operator of the dtype of the output; one of ``NP_BINARY_*``."""
    values = [op.required(0), op.required(1)]
    perm = layout_of(builder, values)
    operands = [typed_operand(builder, value, perm) for value in values]
    emit_typed(builder, TypedBinary(name), operands, op.output, perm)


_UNARY = {
    "Sign": ("sign", NUMBERS),
    "Not": ("not", (ir.DataType.BOOL,)),
    "BitwiseNot": ("invert", INTEGERS),
    "IsNaN": ("isnan", (ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    "IsInf": ("isinf", (ir.DataType.FLOAT, ir.DataType.DOUBLE)),
}


def _check_unary(op: Op, facts: Facts) -> str | None:
    return check_same_dtype([op.required(0)], facts, *_UNARY[op.kind][1])


def _single(op: Op, builder: Builder) -> None:
    positive, negative = bool(op.get("detect_positive", 1)), bool(op.get("detect_negative", 1))
    emit_unary(op, builder, _UNARY[op.kind][0], positive=positive, negative=negative)


def emit_unary(
    op: Op, builder: Builder, name: str, *, positive: bool = True, negative: bool = True
) -> None:
    """Emit a unary operator; one of ``NP_UNARY_*``."""
    given = op.required(0)
    perm = layout_of(builder, [given])
    condition = name.startswith("is")
    slot = typed_operand(builder, given, perm, rounded=condition)
    emit_typed(builder, TypedUnary(name, positive, negative), [slot], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules(*_COMPARISONS, lower=_compare, check=lambda op, facts: _check_binary(op, facts, *ANY)),
    *rules(
        *_LOGIC, lower=_logic, check=lambda op, facts: _check_binary(op, facts, ir.DataType.BOOL)
    ),
    *rules(*_BITWISE, lower=_bitwise, check=lambda op, facts: _check_binary(op, facts, *INTEGERS)),
    *rules("BitShift", lower=_shift, check=lambda op, facts: _check_binary(op, facts, *INTEGERS)),
    *rules("Mod", lower=_mod, check=_check_mod),
    *rules(*_UNARY, lower=_single, check=_check_unary),
)
