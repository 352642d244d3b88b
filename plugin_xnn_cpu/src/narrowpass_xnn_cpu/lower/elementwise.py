"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.facts import NARROW, Facts
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import Elementwise, Pairwise, Permute, Reshaped, Rounded
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

_UNARY = {
    "Abs": "abs",
    "Ceil": "ceiling",
    "Cos": "cosine",
    "Floor": "floor",
    "HardSwish": "hardswish",
    "Neg": "negate",
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
    """An elementwise function of ours; one of `kernels.FUNCTIONS`."""

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
    limits = clip_limits(op, facts)
    return limits if isinstance(limits, str) else needs_floats(op, facts)


@lowers("Clip", check=_check_clip)
def _clip(op: Op, builder: Builder) -> None:
    limits = clip_limits(op, builder.facts)
    if isinstance(limits, str):
        raise BackendError(limits)
    unary(op, builder, "clamp", limits)


@lowers("HardSigmoid", check=_check_floats)
def _hard_sigmoid(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    perm = builder.layout(given)
    slot = builder.at(given, perm)
    numbers = {"multiply": op.get("alpha", 0.2), "add": op.get("beta", 0.5)}
    for kind, number in numbers.items():
        constant = builder.constant_slot(f"{kind}", np.array(number, np.float32))
        slot = builder.emit(Pairwise(slot, constant, builder.scratch(output), kind))
    builder.emit(Elementwise(slot, builder.new(output), "clamp", (0.0, 1.0)), output, perm)


def common_layout(builder: Builder, values: Sequence[ir.Value], rank: int) -> Perm:
    """Choose the order of axes for operands of an elementwise operator.

    The one that fewest operands must be moved to; with equal numbers, one that is not ONNX's,
    since that is what convolutions ask for next.
    """
    full = [v for v in values if builder.rank(v) == rank and not builder.facts.is_constant(v)]
    candidates = dict.fromkeys([*(builder.layout(v) for v in full), identity(rank)])

    def cost(perm: Perm) -> tuple[int, bool]:
        return sum(not builder.has(v, perm) for v in full), perm == identity(rank)

    return min(candidates, key=cost)


def operand(builder: Builder, value: ir.Value, perm: Perm) -> Slot:
    """Give an operand for broadcasting against others of order `perm`."""
    rank, full = builder.rank(value), len(perm)
    if builder.facts.is_constant(value):
        whole = identity(full) == perm or rank == 0
        return builder.at(value) if whole else builder.at(value, perm, rank=full)
    if rank == full:
        return builder.at(value, perm)
    if rank == 0 or perm == identity(full):
        return builder.at(value)
    # In ONNX's order the leading axes may be missing; in another one they need a place.
    lead = (1,) * (full - rank)
    widened = builder.emit(Reshaped(builder.at(value), builder.scratch(value), lead.__add__))
    return builder.emit(Permute(widened, builder.scratch(value), perm))


def _check_binary(op: Op, facts: Facts) -> str | None:
    if not op.inputs:
        return "it has no inputs"
    if op.kind in ("Add", "Sub", "Mul", "Div") and op.version < 7 and op.get("broadcast", 0):
        return "broadcasting along an axis, of operator sets below 7, is not covered"
    if op.kind in ("Max", "Min") and len(op.inputs) > 1 and _bound(op, facts) is None:
        return "XNNPACK loses NaN in the greater or lesser of two computed tensors"
    if op.kind == "PRelu" and op.version < 7 and facts.scalar(op.input(1)) is None:
        return "slopes for each channel, of operator sets below 7, are not covered"
    return _check_floats(op, facts)


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


def same_shape(facts: Facts, one: ir.Value, other: ir.Value) -> bool:
    """Tell whether two values surely have one shape: of numbers, or of names of inputs."""
    first, second = facts.dims(one), facts.dims(other)
    if first is None or first != second:
        return False
    return all(isinstance(dim, int) or dim in facts.names for dim in first)


def _check_pow(op: Op, facts: Facts) -> str | None:
    exponent = facts.scalar(op.input(1))
    if exponent not in (0.5, 1.0, 2.0, 3.0, -0.5):
        return "only powers by the constants 3, 2, 1, 0.5 and -0.5 have a kernel"
    if facts.rank(op.input(0)) == 0 != facts.rank(op.input(1)):
        return "its exponent has more dimensions than its base"
    return needs_floats(op, facts)


@lowers("Pow", check=_check_pow)
def _pow(op: Op, builder: Builder) -> None:
    exponent = builder.facts.scalar(op.input(1))
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
    return needs_floats(op, facts)


@lowers("Identity", "Dropout", check=_check_identity)
def _identity(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    builder.alias(op.output, builder.at(given, perm), perm)


class ToFloat(Step):
    """A conversion to float32."""

    def __init__(self, given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self.kernel = f"convert {given.dtype.name} to float32"

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = kernels.to_float(elements(shape), self.inputs[0].dtype.name)
        return Run(shape, "NP_TO_FLOAT", params=params)


_CASTS = {
    ir.DataType.BOOL,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.FLOAT,
    *NARROW,
}


def _check_cast(op: Op, facts: Facts) -> str | None:
    source, target = facts.dtype(op.input(0)), ir.DataType(op.get("to", 0))
    if target != ir.DataType.FLOAT and target not in NARROW:
        return f"conversion to {target.name.lower()} has no kernel"
    if source not in _CASTS:
        name = "an unknown type" if source is None else source.name.lower()
        return f"conversion from {name} has no kernel"
    if facts.rank(op.input(0)) is None:
        return "the rank of its input is not known"
    return None


@lowers("Cast", check=_check_cast)
def _cast(op: Op, builder: Builder) -> None:
    """Round where the model does: a value of a narrow type is computed with in float32.

    What other operators make of a narrow type stays as it is until it leaves the partition, or
    until a Cast asks for its type.
    """
    given, facts = op.required(0), builder.facts
    source, target = facts.dtype(given), facts.dtype(op.output)
    if facts.is_float(given):
        perm = builder.layout(given)
        slot = builder.at(given, perm)
    else:
        perm = identity(builder.rank(given))
        slot = builder.emit(ToFloat(builder.stored(given), builder.scratch(op.output)))
    # What only leaves the partition is rounded there.
    leaves = not op.output.uses()
    for dtype in (source, None if leaves else target):
        narrow = dtype in NARROW and source != target
        if dtype is None or not narrow or builder.is_exact(slot, dtype):
            continue
        slot = builder.emit(Rounded(slot, builder.scratch(op.output), dtype.numpy()))
        builder.set_exact(slot, dtype)
    builder.alias(op.output, slot, perm)
