"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.comparison import pair, single
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.layout import common_layout, operand
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import Elementwise, Pairwise, Reshaped
from narrowpass_xnn_cpu.lower.typed import (
    ANY,
    INTEGERS,
    NUMBERS,
    TYPED,
    CastStep,
    TypedBinary,
    emit_typed,
    fold_pairs,
    layout_of,
    needs_one_type,
    typed_operand,
)
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

_UNARY = {
    "Ceil": "ceiling",
    "Cos": "cosine",
    "Floor": "floor",
    "HardSwish": "hardswish",
    "Round": "bankers_rounding",
    "Sin": "sine",
    "Tanh": "tanh",
    "square": "square",
    "rsqrt": "reciprocal_square_root",
    "gelu": "gelu",
    "tanh-gelu": "approxgelu",
}
"""XNNPACK's names of operators without parameters. Names in lower case are of patterns."""

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Sum": "add",
    "PRelu": "prelu",
}


class AddClamp(Step):
    """A sum of two tensors of one shape, clamped: one pass over memory instead of two."""

    in_place: Sequence[int] = (0, 1)
    kernel = "add-clamp"

    def __init__(self, a: Slot, b: Slot, output: Slot, limits: tuple[float, float]) -> None:
        super().__init__([a, b], output)
        self._limits = limits

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape, other = shapes
        if shape != other:
            raise BackendError(f"{list(shape)} and {list(other)} were declared to be equal")
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_ADD_CLAMP", params=kernels.add_clamp(elements(shape), *self._limits))


class Function(Step):
    """An elementwise function of ours; one of ``NP_FUNCTION_*``."""

    in_place: Sequence[int] = (0,)

    def __init__(self, given: Slot, output: Slot, function: str) -> None:
        super().__init__([given], output)
        self.kernel = function

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_FUNCTION", params=kernels.function(elements(shape), self.kernel))


def _check_floats(op: Op, facts: Facts) -> str | None:
    return needs_floats(op, facts, len(op.inputs))


def clamp(builder: Builder, slot: Slot, value: ir.Value, perm: Perm, op: Op) -> None:
    """Add what clamps a computed slot to the limits of `op`; its output is `value`."""
    step = Elementwise(slot, builder.new(value), "clamp", op.limits)
    builder.emit(step, value, perm)


def unary(op: Op, builder: Builder, kind: str, parameters: Sequence[float] = ()) -> None:
    """Add an elementwise step, in whatever order of axes the operand has."""
    given = op.required(0)
    perm = builder.layout(given)
    step = Elementwise(builder.at(given, perm), builder.new(op.output), kind, parameters)
    builder.emit(step, op.output, perm)


@lowers(*_UNARY, check=_check_floats)
def _unary(op: Op, builder: Builder) -> None:
    unary(op, builder, _UNARY[op.kind])


_SIGNS = {"Abs": ("abs", "abs"), "Neg": ("negate", "neg")}
"""XNNPACK's names, and those of ``NP_UNARY_*``."""


def _check_sign(op: Op, facts: Facts) -> str | None:
    return needs_one_type([op.required(0)], facts, *NUMBERS)


@lowers(*_SIGNS, check=_check_sign)
def _sign(op: Op, builder: Builder) -> None:
    ours = builder.facts.dtype(op.input(0)) in TYPED
    if ours:
        single(op, builder, _SIGNS[op.kind][1])
        return
    unary(op, builder, _SIGNS[op.kind][0])


@lowers("Exp", "Log", "Sigmoid", "Sqrt", "silu", check=_check_floats)
def _function(op: Op, builder: Builder) -> None:
    function(op, builder, op.kind.lower())


def function(op: Op, builder: Builder, name: str) -> None:
    """Add a function of ours, in whatever order of axes the operand has."""
    given = op.required(0)
    perm = builder.layout(given)
    builder.emit(Function(builder.at(given, perm), builder.new(op.output), name), op.output, perm)


@lowers("Gelu", check=_check_floats)
def _gelu(op: Op, builder: Builder) -> None:
    unary(op, builder, "approxgelu" if op.get("approximate", "none") == "tanh" else "gelu")


@lowers("Relu", check=_check_floats)
def _relu(op: Op, builder: Builder) -> None:
    unary(op, builder, "clamp", (0.0, math.inf))


@lowers("Elu", check=_check_floats)
def _elu(op: Op, builder: Builder) -> None:
    unary(op, builder, "elu", (op.get("alpha", 1.0),))


@lowers("LeakyRelu", check=_check_floats)
def _leaky_relu(op: Op, builder: Builder) -> None:
    unary(op, builder, "leaky_relu", (op.get("alpha", 0.01),))


def clip_limits(op: Op, facts: Facts) -> tuple[float, float] | str:
    """Give the bounds of a Clip, or the reason why they are not known."""
    if op.version < 11:
        low, high = op.get("min", -math.inf), op.get("max", math.inf)
    else:
        bounds = []
        for index, default in ((1, -math.inf), (2, math.inf)):
            value = op.input(index)
            bound = default if value is None else facts.scalar(value)
            if bound is None:
                return f"the bound {value.name if value else ''!r} is not a constant number"
            bounds.append(bound)
        low, high = bounds
    if math.isnan(low) or math.isnan(high) or low > high:
        return f"the bounds [{low}, {high}] are not in order"
    return low, high


def _check_clip(op: Op, facts: Facts) -> str | None:
    if not isinstance(clip_limits(op, facts), str) and needs_floats(op, facts) is None:
        return None
    if op.version < 11:
        return needs_floats(op, facts)
    if any((facts.rank(bound) or 0) > (facts.rank(op.input(0)) or 0) for bound in op.inputs[1:]):
        return "a bound has more dimensions than what is clipped"
    return needs_one_type(op.inputs, facts, *NUMBERS)


@lowers("Clip", check=_check_clip)
def _clip(op: Op, builder: Builder) -> None:
    limits, facts = clip_limits(op, builder.facts), builder.facts
    if not isinstance(limits, str) and facts.is_float(op.input(0)):
        unary(op, builder, "clamp", limits)
        return
    given, output = op.required(0), op.output
    perm = layout_of(builder, [given])
    bounds = [
        (name, typed_operand(builder, value, perm))
        for value, name in ((op.input(1), "max"), (op.input(2), "min"))
        if value is not None
    ]
    if not bounds:
        builder.alias(output, builder.at(given, perm), perm)
        return
    slot = typed_operand(builder, given, perm)
    for name, bound in bounds[:-1]:
        made = Slot(f"{output.name} (part)", slot.dtype)
        slot = builder.emit(TypedBinary(slot, bound, made, name))
    name, bound = bounds[-1]
    emit_typed(builder, lambda made: TypedBinary(slot, bound, made, name), output, perm)


def _check_binary(op: Op, facts: Facts) -> str | None:
    if not op.inputs:
        return "it has no inputs"
    if op.kind in ("Add", "Sub", "Mul", "Div") and op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    if op.kind == "PRelu" and op.version < 7 and facts.scalar(op.input(1)) is None:
        return "slopes for each channel, of operator sets below 7, are not covered"
    if op.kind == "PRelu":
        return _check_floats(op, facts)
    return needs_one_type(op.inputs, facts, *NUMBERS)


def _is_typed(op: Op, facts: Facts) -> bool:
    """Tell whether no operator of XNNPACK is for the operands."""
    return facts.dtype(op.input(0)) in TYPED


def _bound(op: Op, facts: Facts) -> float | None:
    """Give the number that a Max or Min compares with; None where there is no such constant."""
    numbers = [facts.scalar(value) for value in op.inputs]
    found = [number for number in numbers if number is not None and not math.isnan(number)]
    return found[0] if len(numbers) == 2 and found else None


@lowers("Max", "Min", check=_check_binary)
def _extreme(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    bound = _bound(op, builder.facts)
    given = values[0]
    # XNNPACK loses NaN in the greater or lesser of two computed tensors.
    if len(values) > 1 and (bound is None or _is_typed(op, builder.facts)):
        fold_pairs(builder, values, op.output, op.kind.lower())
        return
    if bound is not None:
        given = values[1] if builder.facts.scalar(values[0]) == bound else values[0]
    perm = builder.layout(given)
    slot = builder.at(given, perm)
    if bound is not None:
        limits = (bound, math.inf) if op.kind == "Max" else (-math.inf, bound)
        slot = builder.emit(Elementwise(slot, builder.new(op.output), "clamp", limits))
    rank = builder.rank(op.output)
    if rank == len(perm):
        builder.alias(op.output, slot, perm)
        return
    lead = (1,) * (rank - len(perm))
    builder.emit(Reshaped(slot, builder.new(op.output), lead.__add__), op.output)


@lowers(*_BINARY, check=_check_binary, clamps=True)
def _binary(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    output = op.output
    rank = max(builder.rank(value) for value in values)
    perm = common_layout(builder, values, rank)
    if len(values) == 1:
        builder.alias(output, builder.at(values[0], perm), perm)
        return
    if _is_typed(op, builder.facts):
        fold_pairs(builder, values, output, "add" if op.kind == "Sum" else op.kind.lower())
        return
    kind = _BINARY[op.kind]
    slot = operand(builder, values[0], perm)
    for index, value in enumerate(values[1:], start=2):
        last = index == len(values)
        other = operand(builder, value, perm)
        pair = kind == "add" and len(values) == 2
        if last and op.clamped and pair and same_shape(builder.facts, *values):
            builder.emit(AddClamp(slot, other, builder.new(output), op.limits), output, perm)
            return
        target = builder.new(output) if last and not op.clamped else builder.scratch(output)
        slot = builder.emit(Pairwise(slot, other, target, kind))
    if op.clamped:
        clamp(builder, slot, output, perm, op)
    else:
        builder.alias(output, slot, perm)


@lowers("Mean", check=_check_binary)
def _mean(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    output, facts = op.output, builder.facts
    dtype = np.dtype(np.float64 if facts.dtype(output) == ir.DataType.DOUBLE else np.float32)
    perm = layout_of(builder, values)
    slot = typed_operand(builder, values[0], perm)
    for value in values[1:]:
        other = typed_operand(builder, value, perm)
        slot = builder.emit(TypedBinary(slot, other, Slot(f"{output.name} (part)", dtype), "add"))
    count = builder.constant_slot("count", np.array(len(values), dtype))
    builder.emit(TypedBinary(slot, count, builder.new(output), "div"), output, perm)


def same_shape(facts: Facts, one: ir.Value, other: ir.Value) -> bool:
    """Tell whether two values surely have one shape: of numbers, or of names of inputs."""
    first, second = facts.dims(one), facts.dims(other)
    if first is None or first != second:
        return False
    return all(isinstance(dim, int) or dim in facts.names for dim in first)


_POWERS = (0.5, 1.0, 2.0, 3.0, -0.5)
"""Constant exponents of floats that need no general power."""


def _easy_power(op: Op, facts: Facts) -> float | None:
    exponent = facts.scalar(op.input(1))
    if exponent not in _POWERS or not facts.is_float(op.input(0)):
        return None
    # An exponent of more dimensions than its base gives these to the result.
    return None if facts.rank(op.input(0)) == 0 != facts.rank(op.input(1)) else exponent


def _check_pow(op: Op, facts: Facts) -> str | None:
    if op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    values = [op.required(0)], [op.required(1)]
    return next(filter(None, (needs_one_type(each, facts, *NUMBERS) for each in values)), None)


def _power(op: Op, builder: Builder) -> None:
    """Add a power of any types: of different ones as float64, or int64 where both are integers."""
    base, exponent, output = op.required(0), op.required(1), op.output
    facts = builder.facts
    types = facts.dtype(base), facts.dtype(exponent)
    if types[0] == types[1] or (facts.is_float(base) and facts.is_float(exponent)):
        pair(op, builder, "pow")
        return
    perm = layout_of(builder, [base, exponent])
    wide = np.dtype(np.int64 if all(dtype in INTEGERS for dtype in types) else np.float64)
    slots = []
    for value in (base, exponent):
        slot = typed_operand(builder, value, perm)
        if slot.dtype != wide:
            slot = builder.emit(CastStep(slot, Slot(f"{output.name} (part)", wide)))
        slots.append(slot)
    step = TypedBinary(slots[0], slots[1], Slot(f"{output.name} (part)", wide), "pow")
    made = builder.emit(step)
    if builder.new(output).dtype == wide:
        builder.alias(output, made, perm)
        return
    emit_typed(builder, lambda slot: CastStep(made, slot), output, perm)


@lowers("Pow", check=_check_pow)
def _pow(op: Op, builder: Builder) -> None:
    exponent = _easy_power(op, builder.facts)
    if exponent is None:
        _power(op, builder)
        return
    if exponent == 1.0:
        given = op.required(0)
        perm = builder.layout(given)
        builder.alias(op.output, builder.at(given, perm), perm)
        return
    if exponent == 3.0:
        given = op.required(0)
        perm = builder.layout(given)
        slot = builder.at(given, perm)
        square = builder.emit(Elementwise(slot, builder.scratch(op.output), "square"))
        step = Pairwise(square, slot, builder.new(op.output), "multiply")
        builder.emit(step, op.output, perm)
        return
    if exponent == 2.0:
        unary(op, builder, "square")
    else:
        function(op, builder, "root" if exponent == 0.5 else "inverse root")


@lowers("Reciprocal", check=_check_floats)
def _reciprocal(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    one = builder.constant_slot("one", np.array(1, np.float32))
    step = Pairwise(one, builder.at(given, perm), builder.new(op.output), "divide")
    step.in_place = (1,)
    builder.emit(step, op.output, perm)


def _check_identity(op: Op, facts: Facts) -> str | None:
    if op.kind == "Dropout":
        if len(op.outputs) > 1 and (op.outputs[1].uses() or op.outputs[1].name in facts.needed):
            return "its mask is used"
        training = op.input(2)
        if training is not None and facts.scalar(training) != 0.0:
            return "it may be in training mode"
    return needs_one_type([op.required(0)], facts, *ANY)


@lowers("Identity", "Dropout", check=_check_identity)
def _identity(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    builder.alias(op.output, builder.at(given, perm), perm)
