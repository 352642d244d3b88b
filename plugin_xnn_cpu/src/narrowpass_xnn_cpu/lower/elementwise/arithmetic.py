"""Arithmetic and activations of XNNPACK, Clip, Max, Min, Pow and Identity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, common_layout, operand
from narrowpass_xnn_cpu.lower.elementwise.typed import (
    ANY,
    INTEGERS,
    NUMBERS,
    TYPED,
    Cast,
    TypedBinary,
    check_same_dtype,
    emit_binary,
    emit_typed,
    emit_unary,
    fold_pairs,
    layout_of,
    typed_operand,
)
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary, Unary, add_leading_axes
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

_UNARY = {
    "Ceil": "ceiling",
    "Floor": "floor",
    "Round": "bankers_rounding",
    "square": "square",
}
"""Names in XNNPACK of unary operators without parameters, by operator or pattern. Each rounds once:
others have other bits with other instruction sets."""

_FUNCTIONS = {
    **{name: name.lower() for name in ("Exp", "Log", "Sigmoid", "Sqrt", "Tanh")},
    "HardSwish": "hard swish",
    "gelu": "gelu",
    "rsqrt": "rsqrt",
    "silu": "silu",
    "tanh-gelu": "tanh gelu",
}
"""Names of ``NP_FUNCTION_*``, by operator or pattern."""

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Sum": "add",
    "PRelu": "prelu",
}


@record
class AddClamp(Computation):
    """Addition of two tensors of equal shape with a clamp, fused to one pass over memory.

    Attributes:
        limits: the clipping range.
    """

    mnemonic = "add_clamp"
    kernel = "add-clamp"
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)
    limits: tuple[float, float]

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, other = shapes
        if shape != other:
            raise BackendError(f"{list(shape)} and {list(other)} were declared to be equal")
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_ADD_CLAMP", params=kernels.add_clamp(elements(shape), *self.limits))


@record
class Function(Computation):
    """An elementwise function of float32.

    Attributes:
        function: one of ``NP_FUNCTION_*``.
    """

    mnemonic = "function"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return self.function

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_FUNCTION", params=kernels.function(elements(shape), self.function))


def _check_floats(op: Op, facts: Facts) -> str | None:
    return check_floats(op, facts, len(op.inputs))


def clamp(builder: Builder, slot: Slot, value: ir.Value, perm: Perm, op: Op) -> None:
    """Emit the clamp of a computed slot to the limits of `op`; its output is `value`."""
    builder.compute(Unary("clamp", op.limits), [slot], value, perm)


def unary(op: Op, builder: Builder, function: str, parameters: tuple[float, ...] = ()) -> None:
    """Emit a unary operator of XNNPACK in the layout of the operand."""
    elementwise(op, builder, Unary(function, parameters))


def elementwise(op: Op, builder: Builder, computation: Computation) -> None:
    """Emit an elementwise computation in the layout of the operand."""
    given = op.required(0)
    perm = builder.layout(given)
    builder.compute(computation, [builder.slot_of(given, perm)], op.output, perm)


def _unary(op: Op, builder: Builder) -> None:
    unary(op, builder, _UNARY[op.kind])


_SIGNS = {"Abs": ("abs", "abs"), "Neg": ("negate", "neg")}
"""Names in XNNPACK, and those of ``NP_UNARY_*``."""


def _check_sign(op: Op, facts: Facts) -> str | None:
    return check_same_dtype([op.required(0)], facts, *NUMBERS)


def _sign(op: Op, builder: Builder) -> None:
    ours = builder.facts.dtype(op.input(0)) in TYPED
    if ours:
        emit_unary(op, builder, _SIGNS[op.kind][1])
        return
    unary(op, builder, _SIGNS[op.kind][0])


def _function(op: Op, builder: Builder) -> None:
    function(op, builder, _FUNCTIONS[op.kind])


def function(op: Op, builder: Builder, name: str) -> None:
    """Emit an own elementwise function of float32 in the layout of the operand."""
    elementwise(op, builder, Function(name))


def _gelu(op: Op, builder: Builder) -> None:
    function(op, builder, "tanh gelu" if op.get("approximate", "none") == "tanh" else "gelu")


def _relu(op: Op, builder: Builder) -> None:
    unary(op, builder, "clamp", (0.0, math.inf))


def _leaky_relu(op: Op, builder: Builder) -> None:
    unary(op, builder, "leaky_relu", (op.get("alpha", 0.01),))


def clip_limits(op: Op, facts: Facts) -> tuple[float, float] | str:
    """Return the clipping range of a Clip, or the reason why it is not known."""
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
    if not isinstance(clip_limits(op, facts), str) and check_floats(op, facts) is None:
        return None
    if op.version < 11:
        return check_floats(op, facts)
    if any((facts.rank(bound) or 0) > (facts.rank(op.input(0)) or 0) for bound in op.inputs[1:]):
        return "a bound has more dimensions than what is clipped"
    return check_same_dtype(op.inputs, facts, *NUMBERS)


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
        builder.alias(output, builder.slot_of(given, perm), perm)
        return
    slot = typed_operand(builder, given, perm)
    for name, bound in bounds[:-1]:
        clipped = Slot(f"{output.name} (part)", slot.dtype)
        slot = builder.emit(TypedBinary(name), [slot, bound], clipped)
    name, bound = bounds[-1]
    emit_typed(builder, TypedBinary(name), [slot, bound], output, perm)


def _check_binary(op: Op, facts: Facts) -> str | None:
    if not op.inputs:
        return "it has no inputs"
    if op.kind in ("Add", "Sub", "Mul", "Div") and op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    if op.kind == "PRelu" and op.version < 7 and facts.scalar(op.input(1)) is None:
        return "slopes for each channel, of operator sets below 7, are not covered"
    if op.kind == "PRelu":
        return _check_floats(op, facts)
    return check_same_dtype(op.inputs, facts, *NUMBERS)


def _is_typed(op: Op, facts: Facts) -> bool:
    """Return whether the dtype of the operands is not supported by XNNPACK."""
    return facts.dtype(op.input(0)) in TYPED


def _constant_bound(op: Op, facts: Facts) -> float | None:
    """Return the scalar constant of a Max or Min of two operands; None if there is none."""
    numbers = [facts.scalar(value) for value in op.inputs]
    found = [number for number in numbers if number is not None and not math.isnan(number)]
    return found[0] if len(numbers) == 2 and found else None


def _extreme(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    bound = _constant_bound(op, builder.facts)
    given = values[0]
    # Max and Min of XNNPACK do not propagate NaN.
    if len(values) > 1 and (bound is None or _is_typed(op, builder.facts)):
        fold_pairs(builder, values, op.output, op.kind.lower())
        return
    if bound is not None:
        given = values[1] if builder.facts.scalar(values[0]) == bound else values[0]
    perm = builder.layout(given)
    slot = builder.slot_of(given, perm)
    if bound is not None:
        limits = (bound, math.inf) if op.kind == "Max" else (-math.inf, bound)
        slot = builder.emit(Unary("clamp", limits), [slot], builder.new(op.output))
    rank = builder.rank(op.output)
    if rank == len(perm):
        builder.alias(op.output, slot, perm)
        return
    builder.compute(add_leading_axes(len(perm), rank), [slot], op.output)


def _binary(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    output = op.output
    rank = max(builder.rank(value) for value in values)
    perm = common_layout(builder, values, rank)
    if len(values) > 1 and _is_typed(op, builder.facts):
        fold_pairs(builder, values, output, "add" if op.kind == "Sum" else op.kind.lower())
        return
    kind = _BINARY[op.kind]
    single = len(values) == 1
    slot = builder.slot_of(values[0], perm) if single else operand(builder, values[0], perm)
    for index, value in enumerate(values[1:], start=2):
        last = index == len(values)
        other = operand(builder, value, perm)
        pair = kind == "add" and len(values) == 2
        if last and op.clamped and pair and same_shape(builder.facts, *values):
            builder.compute(AddClamp(op.limits), [slot, other], output, perm)
            return
        target = builder.new(output) if last and not op.clamped else builder.scratch(output)
        slot = builder.emit(Binary(kind), [slot, other], target)
    if op.clamped:
        clamp(builder, slot, output, perm, op)
    else:
        builder.alias(output, slot, perm)


def _mean(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    output, facts = op.output, builder.facts
    dtype = np.dtype(np.float64 if facts.dtype(output) == ir.DataType.DOUBLE else np.float32)
    perm = layout_of(builder, values)
    slot = typed_operand(builder, values[0], perm)
    for value in values[1:]:
        other = typed_operand(builder, value, perm)
        total = Slot(f"{output.name} (part)", dtype)
        slot = builder.emit(TypedBinary("add"), [slot, other], total)
    count = builder.constant_slot("count", np.array(len(values), dtype))
    builder.compute(TypedBinary("div"), [slot, count], output, perm)


def same_shape(facts: Facts, one: ir.Value, other: ir.Value) -> bool:
    """Return whether two values are known to have equal shapes, of numbers or symbols of inputs."""
    first, second = facts.dims(one), facts.dims(other)
    if first is None or first != second:
        return False
    return all(isinstance(dim, int) or dim in facts.names for dim in first)


_SIMPLE_EXPONENTS = (0.5, 1.0, 2.0, 3.0, -0.5)
"""Constant exponents of floats that are lowered to sqrt, multiplications or rsqrt."""


def _simple_exponent(op: Op, facts: Facts) -> float | None:
    exponent = facts.scalar(op.input(1))
    if exponent not in _SIMPLE_EXPONENTS or not facts.is_float(op.input(0)):
        return None
    # An exponent of shape [1] extends the rank of a scalar base.
    return None if facts.rank(op.input(0)) == 0 != facts.rank(op.input(1)) else exponent


def _check_pow(op: Op, facts: Facts) -> str | None:
    if op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    values = [op.required(0)], [op.required(1)]
    return next(filter(None, (check_same_dtype(each, facts, *NUMBERS) for each in values)), None)


def _power(op: Op, builder: Builder) -> None:
    """Emit Pow of any dtypes; different ones are computed in float64, or int64 for integers."""
    base, exponent, output = op.required(0), op.required(1), op.output
    facts = builder.facts
    types = facts.dtype(base), facts.dtype(exponent)
    if types[0] == types[1] or (facts.is_float(base) and facts.is_float(exponent)):
        emit_binary(op, builder, "pow")
        return
    perm = layout_of(builder, [base, exponent])
    wide = np.dtype(np.int64 if all(dtype in INTEGERS for dtype in types) else np.float64)
    slots = []
    for value in (base, exponent):
        slot = typed_operand(builder, value, perm)
        if slot.dtype != wide:
            slot = builder.emit(Cast(), [slot], Slot(f"{output.name} (part)", wide))
        slots.append(slot)
    power = builder.emit(TypedBinary("pow"), slots, Slot(f"{output.name} (part)", wide))
    if builder.new(output).dtype == wide:
        builder.alias(output, power, perm)
        return
    emit_typed(builder, Cast(), [power], output, perm)


def _pow(op: Op, builder: Builder) -> None:
    exponent = _simple_exponent(op, builder.facts)
    if exponent is None:
        _power(op, builder)
        return
    if exponent == 1.0:
        given = op.required(0)
        perm = builder.layout(given)
        builder.alias(op.output, builder.slot_of(given, perm), perm)
        return
    if exponent == 3.0:
        given = op.required(0)
        perm = builder.layout(given)
        slot = builder.slot_of(given, perm)
        square = builder.intermediate(Unary("square"), [slot], op.output)
        builder.compute(Binary("multiply"), [square, slot], op.output, perm)
        return
    if exponent == 2.0:
        if not _squared_difference(op, builder):
            unary(op, builder, "square")
    else:
        function(op, builder, "root" if exponent == 0.5 else "inverse root")


def _squared_difference(op: Op, builder: Builder) -> bool:
    """Emit (x - y)² in one pass over memory, if only the square reads the difference."""
    base = op.required(0)
    perm = builder.layout(base)
    before = builder.sole_producer(builder.slot_of(base, perm))
    if before is None or before.computation != Binary("subtract"):
        return False
    builder.replace([before], Binary("squared_difference"), before.operands, op.output, perm)
    return True


def _reciprocal(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    one = builder.constant_slot("one", np.array(1, np.float32))
    builder.compute(Binary("divide"), [one, builder.slot_of(given, perm)], op.output, perm)


def _check_identity(op: Op, facts: Facts) -> str | None:
    if op.kind == "Dropout":
        if len(op.outputs) > 1 and (op.outputs[1].uses() or op.outputs[1].name in facts.needed):
            return "its mask is used"
        training = op.input(2)
        if training is not None and facts.scalar(training) != 0.0:
            return "it may be in training mode"
    return check_same_dtype([op.required(0)], facts, *ANY)


def _identity(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    builder.alias(op.output, builder.slot_of(given, perm), perm)


RULES: tuple[Rule, ...] = (
    *rules(*_UNARY, lower=_unary, check=_check_floats),
    *rules(*_SIGNS, lower=_sign, check=_check_sign),
    *rules(*_FUNCTIONS, lower=_function, check=_check_floats),
    *rules("Gelu", lower=_gelu, check=_check_floats),
    *rules("Relu", lower=_relu, check=_check_floats),
    *rules("LeakyRelu", lower=_leaky_relu, check=_check_floats),
    *rules("Clip", lower=_clip, check=_check_clip),
    *rules("Max", "Min", lower=_extreme, check=_check_binary),
    *rules(*_BINARY, lower=_binary, check=_check_binary, fuses_clamp=True),
    *rules("Mean", lower=_mean, check=_check_binary),
    *rules("Pow", lower=_pow, check=_check_pow),
    *rules("Reciprocal", lower=_reciprocal, check=_check_floats),
    *rules("Identity", "Dropout", lower=_identity, check=_check_identity),
)
