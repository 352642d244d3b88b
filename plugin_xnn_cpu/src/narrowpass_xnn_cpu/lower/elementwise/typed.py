"""Elementwise operators of any dtype: comparisons, logic, bits, casts, mathematical functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import (
    Builder,
    common_layout,
    identity,
    operand,
    storage_dtype,
)
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary, Convert, RoundTo, broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

INTEGERS = (
    *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
)
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
NUMBERS = (*INTEGERS, *FLOATS)
"""Numeric dtypes. Narrow floats are accepted wherever float32 is."""
ANY = (*NUMBERS, ir.DataType.BOOL)
TYPED = (*INTEGERS, ir.DataType.DOUBLE)
"""Numeric dtypes that XNNPACK does not support."""


@record
class TypedBinary(Computation):
    """A binary operator of two operands of equal dtype, which broadcast.

    Attributes:
        function: one of ``NP_BINARY_*``.
    """

    mnemonic = "typed_binary"
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)
    function: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{self.function} {op.operands[0].dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape = broadcast(*shapes)
        if not elements(shape):
            return Run(shape)
        strides = [kernels.broadcast_strides(given, shape) for given in shapes]
        dtype = step.op.operands[0].dtype.name
        params = kernels.typed_binary(shape, strides, self.function, dtype)
        return Run(shape, "NP_TYPED_BINARY", params=params)


@record
class TypedUnary(Computation):
    """A unary operator of any dtype.

    Attributes:
        function: one of ``NP_UNARY_*``.
        positive: whether ``isinf`` detects positive infinity.
        negative: whether it detects negative infinity.
    """

    mnemonic = "typed_unary"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str
    positive: bool = True
    negative: bool = True

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{self.function} {op.operands[0].dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = kernels.typed_unary(
            elements(shape),
            self.function,
            step.op.operands[0].dtype.name,
            positive=self.positive,
            negative=self.negative,
        )
        return Run(shape, "NP_TYPED_UNARY", params=params)


@record
class Cast(Computation):
    """A conversion between two dtypes of ``NP_TYPE_*``."""

    mnemonic = "cast"
    overwrites: ClassVar[tuple[int, ...]] = (0,)

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"convert {op.operands[0].dtype.name} to {op.output.dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        names = step.op.operands[0].dtype.name, step.op.output.dtype.name
        return Run(shape, "NP_CAST", params=kernels.cast(elements(shape), *names))


@record
class MathFunction(Computation):
    """A function of a float with up to two parameters.

    Attributes:
        function: one of ``NP_FUNCTION_*``.
        parameters: of the function.
    """

    mnemonic = "math"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str
    parameters: tuple[float, ...] = ()

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return self.function

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = kernels.function(elements(shape), self.function, *self.parameters)
        return Run(shape, "NP_FUNCTION", params=params)


def check_same_dtype(
    values: Sequence[ir.Value | None], facts: Facts, *dtypes: ir.DataType
) -> str | None:
    """Check that values have equal dtypes, one of `dtypes`, and known, supported ranks."""
    found = [value for value in values if value is not None]
    for value in found:
        reason = check_dtype(value, facts, *dtypes)
        if reason:
            return reason
    names = {facts.dtype(value) for value in found}
    return None if len(names) < 2 else "its operands are of several types"


def layout_of(builder: Builder, values: Sequence[ir.Value]) -> Perm:
    """Choose the layout for operands of any dtype; uint8 has that of ONNX."""
    rank = max(builder.rank(value) for value in values)
    if any(builder.facts.dtype(value) == ir.DataType.UINT8 for value in values):
        return identity(rank)  # uint8 is read as it is stored in the model
    return common_layout(builder, values, rank)


def typed_operand(builder: Builder, value: ir.Value, perm: Perm, *, rounded: bool = False) -> Slot:
    """Return the slot of an operand in the layout `perm`; uint8 as in the model, not as int8.

    Args:
        builder: of the partition.
        value: the operand.
        perm: its layout; ignored for uint8.
        rounded: whether elements of a narrow float must be rounded to its dtype.
    """
    facts = builder.facts
    dtype = facts.dtype(value)
    if dtype == ir.DataType.UINT8:
        if facts.is_constant(value):
            return builder.constant_slot(value.name or "", facts.array(value))
        return builder.stored(value)
    slot = operand(builder, value, perm)
    if rounded and dtype in NARROW and not facts.is_constant(value):
        slot = round_to(builder, slot, dtype, value)
    return slot


def round_to(builder: Builder, slot: Slot, dtype: ir.DataType, value: ir.Value) -> Slot:
    """Return a float32 slot rounded to a narrow dtype; itself if it is known to be exact."""
    if builder.is_exact(slot, dtype):
        return slot
    rounded = Slot(f"{value.name} (part)", slot.dtype)
    builder.emit(RoundTo(np.dtype(dtype.numpy())), [slot], rounded)
    builder.set_exact(rounded, dtype)
    return rounded


def emit_typed(
    builder: Builder,
    computation: Computation,
    operands: Sequence[Slot],
    output: ir.Value,
    perm: Perm,
) -> None:
    """Emit a computation whose result is `output` in its dtype in the model."""
    dtype = storage_dtype(builder.facts, output)
    if dtype != np.uint8:
        builder.compute(computation, operands, output, perm)
        return
    raw = builder.emit(computation, operands, Slot(f"{output.name} (part)", dtype))
    builder.compute(Convert(), [raw], output, perm)


def fold_pairs(
    builder: Builder, values: Sequence[ir.Value], output: ir.Value, function: str
) -> None:
    """Emit a left fold of a binary operator over several operands."""
    perm = layout_of(builder, values)
    if len(values) == 1:
        builder.alias(output, builder.slot_of(values[0], perm), perm)
        return
    operator = TypedBinary(function)
    slot = typed_operand(builder, values[0], perm)
    for value in values[1:-1]:
        other = typed_operand(builder, value, perm)
        slot = builder.emit(operator, [slot, other], Slot(f"{output.name} (part)", slot.dtype))
    last = typed_operand(builder, values[-1], perm)
    emit_typed(builder, operator, [slot, last], output, perm)


_CASTS = {*ANY, *NARROW}


def _check_cast(op: Op, facts: Facts) -> str | None:
    source, target = facts.dtype(op.input(0)), facts.dtype(op.output)
    if op.kind == "Cast":
        target = ir.DataType(op.get("to", 0))
    for dtype, side in ((target, "to"), (source, "from")):
        if dtype not in _CASTS:
            name = "an unknown type" if dtype is None else dtype.name.lower()
            return f"conversion {side} {name} has no kernel"
    if facts.rank(op.input(0)) is None:
        return "the rank of its input is not known"
    return None


def _cast(op: Op, builder: Builder) -> None:
    """Lower a Cast; values of narrow floats are held in float32 and rounded here.

    Results of other operators with a narrow dtype are rounded only when they leave the partition,
    or when a Cast reads them.
    """
    given, facts = op.required(0), builder.facts
    source, target = facts.dtype(given), facts.dtype(op.output)
    if source is None or target is None:
        raise ValueError("a type is not known")
    if source == target:
        perm = builder.layout(given)
        builder.alias(op.output, builder.slot_of(given, perm), perm)
        return
    perm = layout_of(builder, [given])
    slot = typed_operand(builder, given, perm, rounded=True)
    if facts.is_float(op.output):
        _to_float(op, builder, slot, perm)
        return
    emit_typed(builder, Cast(), [slot], op.output, perm)


def _to_float(op: Op, builder: Builder, slot: Slot, perm: Perm) -> None:
    output, target = op.output, builder.facts.dtype(op.output)
    if not builder.facts.is_float(op.required(0)):
        slot = builder.intermediate(Cast(), [slot], output)
    # A value without readers in the partition is rounded when it leaves it.
    if target in NARROW and output.uses():
        slot = round_to(builder, slot, target, output)
    builder.alias(output, slot, perm)


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


_SELU = 1.67326319217681884765625, 1.05070102214813232421875

_PARAMETERS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Acos": ("acos", ()),
    "Acosh": ("acosh", ()),
    "Asin": ("asin", ()),
    "Asinh": ("asinh", ()),
    "Atan": ("atan", ()),
    "Atanh": ("atanh", ()),
    "Celu": ("celu", (("alpha", 1.0),)),
    "Cos": ("cos", ()),
    "Cosh": ("cosh", ()),
    "Elu": ("elu", (("alpha", 1.0),)),
    "Erf": ("erf", ()),
    "HardSigmoid": ("hard sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "Mish": ("mish", ()),
    "Selu": ("selu", (("alpha", _SELU[0]), ("gamma", _SELU[1]))),
    "Shrink": ("shrink", (("lambd", 0.5), ("bias", 0.0))),
    "Sin": ("sin", ()),
    "Sinh": ("sinh", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "Tan": ("tan", ()),
    "ThresholdedRelu": ("thresholded relu", (("alpha", 1.0),)),
}
"""Names of ``NP_FUNCTION_*``, with the attributes that are parameters and their defaults."""

_SELU_OF_1 = 1.6732, 1.0507


def _activation(op: Op, builder: Builder) -> None:
    name, attributes = _PARAMETERS[op.kind]
    parameters = tuple(op.get(key, default) for key, default in attributes)
    if op.kind == "Selu" and op.version < 6:
        parameters = op.get("alpha", _SELU_OF_1[0]), op.get("gamma", _SELU_OF_1[1])
    given = op.required(0)
    perm = builder.layout(given)
    builder.compute(MathFunction(name, parameters), [builder.slot_of(given, perm)], op.output, perm)


def _swiglu(op: Op, builder: Builder) -> None:
    gate, factor, output = op.required(0), op.required(1), op.output
    perm = common_layout(builder, [gate, factor], builder.rank(gate))
    swish = MathFunction("swish", (op.get("alpha", 1.0),))
    gated = builder.intermediate(swish, [builder.slot_of(gate, perm)], output)
    builder.compute(Binary("multiply"), [gated, builder.slot_of(factor, perm)], output, perm)


RULES: tuple[Rule, ...] = (
    *rules("Cast", "CastLike", lower=_cast, check=_check_cast),
    *rules(*_COMPARISONS, lower=_compare, check=lambda op, facts: _check_binary(op, facts, *ANY)),
    *rules(
        *_LOGIC, lower=_logic, check=lambda op, facts: _check_binary(op, facts, ir.DataType.BOOL)
    ),
    *rules(*_BITWISE, lower=_bitwise, check=lambda op, facts: _check_binary(op, facts, *INTEGERS)),
    *rules("BitShift", lower=_shift, check=lambda op, facts: _check_binary(op, facts, *INTEGERS)),
    *rules("Mod", lower=_mod, check=_check_mod),
    *rules(*_UNARY, lower=_single, check=_check_unary),
    *rules(*_PARAMETERS, lower=_activation, check=check_floats),
    *rules("SwiGLU", lower=_swiglu, check=lambda op, facts: check_floats(op, facts, 2)),
)
