"""Concat, Slice and Split."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, common_layout, identity
from narrowpass_xnn_cpu.lower.movement.axes import MOVABLE, check_movable
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

_UNKNOWN_SIZE = 1 << 10
"""Size that an unknown dimension is assumed to have when the cost of layouts is compared."""

Part = tuple[list[int], list[int], list[int]]
"""Start, size and step of a slice, for each axis."""


@record
class ConcatPiece(Computation):
    """The copy of one operand of a Concat into the result.

    Operands are the copied one, then all operands; the copies of all of them write the same slot.

    Attributes:
        index: of the copied operand.
        axis: of the concatenation, in the layout of the slot.
        rank: of the operands.
        deferred: whether the copy is deferred to the operation that reads the result, unless an
            operand is empty.
    """

    mnemonic = "concat_piece"
    kernel = "copy"
    index: int
    axis: int
    rank: int
    deferred: bool = False

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self

    def shares_output(self, other: Computation) -> bool:
        """See `Computation.shares_output`: each operand is copied to a region of its own."""
        return isinstance(other, ConcatPiece) and other.index != self.index

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        piece, *all_pieces = shapes
        axis, itemsize = self.axis, step.op.output.dtype.itemsize
        for shape in all_pieces:
            if shape[:axis] != piece[:axis] or shape[axis + 1 :] != piece[axis + 1 :]:
                raise BackendError(
                    f"{list(piece)} and {list(shape)} cannot be concatenated along axis {axis}"
                )
        whole = sum(shape[axis] for shape in all_pieces)
        result = (*piece[:axis], whole, *piece[axis + 1 :])
        if not elements(piece) or (self.deferred and all(map(elements, all_pieces))):
            return Run(result)
        strides = kernels.dense_strides(result)
        before = sum(shape[axis] for shape in all_pieces[: self.index])
        params = kernels.copy(
            piece,
            kernels.dense_strides(piece),
            strides,
            itemsize,
            out_offset=before * strides[axis],
        )
        return Run(result, "NP_COPY", params=params)


def _check_concat(op: Op, facts: Facts) -> str | None:
    for value in op.inputs:
        reason = None if value is None else check_dtype(value, facts, *MOVABLE)
        if reason:
            return reason
    rank = facts.rank(op.input(0)) or 0
    axis = op.get("axis", 1)
    if rank == 0 or not -rank <= axis < rank:
        return f"axis {axis} is not one of inputs of rank {rank}"
    if any(facts.rank(value) != rank for value in op.inputs):
        return "its inputs differ in rank"
    return None


def _concat(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    rank = builder.rank(values[0])
    perm = _concat_layout(op, values, builder)
    if len(values) == 1:
        builder.alias(op.output, builder.slot_of(values[0], perm), perm)
        return
    slots = [builder.slot_of(value, perm) for value in values]
    output = builder.new(op.output)
    axis = perm.index(op.get("axis", 1) % rank)
    for index, slot in enumerate(slots):
        builder.emit(ConcatPiece(index, axis, rank), [slot, *slots], output)
    builder.alias(op.output, output, perm)


def _concat_layout(op: Op, values: Sequence[ir.Value], builder: Builder) -> Perm:
    """Choose the layout of a Concat: the one for which fewest elements are transposed.

    Values that enter or leave the partition have the layout of ONNX: a KV cache is concatenated in
    it, and only the few new rows are transposed. Unknown dimensions count as large.
    """
    facts, rank = builder.facts, builder.rank(values[0])
    found = common_layout(builder, values, rank)
    candidates = dict.fromkeys([found, *map(builder.layout, values), identity(rank)])

    def moved(value: ir.Value, perm: Perm) -> int:
        dims = [dim if isinstance(dim, int) else _UNKNOWN_SIZE for dim in facts.dims(value) or ()]
        if builder.has_layout(value, perm) or _is_same_order(builder.layout(value), perm, dims):
            return 0
        return math.prod(dims)

    def cost(perm: Perm) -> int:
        total = sum(moved(value, perm) for value in values if not facts.is_constant(value))
        if _is_method_output(op.output, facts):
            total += moved(op.output, perm)
        return total

    return min(candidates, key=cost)


def _is_same_order(source: Perm, perm: Perm, dims: Sequence[int]) -> bool:
    """Return whether two layouts differ only in the position of axes of size 1."""
    long = [[axis for axis in order if dims[axis] != 1] for order in (source, perm)]
    return long[0] == long[1]


def _is_method_output(value: ir.Value, facts: Facts) -> bool:
    """Return whether a value, or an Identity of it, is an output of the method."""
    if value.name in facts.given:
        return True
    users = (use.node for use in value.uses())
    return any(u.op_type == "Identity" and u.outputs[0].name in facts.given for u in users)


class SliceLike(Computation):
    """A slice of a tensor: a view if it is dense, else a copy."""

    kernel = "copy"

    @abc.abstractmethod
    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """Return starts, sizes and steps of the slice along each axis of the slot.

        Raises:
            BackendError: the slice is out of range.
        """

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        starts, sizes, steps = self.part(shape, sizing)
        result = tuple(sizes)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(shape)
        offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
        itemsize = step.op.output.dtype.itemsize
        # Dense: all axes after the first one that is longer than 1 are complete.
        long = [axis for axis, size in enumerate(result) if size != 1]
        whole = all(result[axis] == shape[axis] for axis in long[1:])
        between = range(long[0] + 1, len(shape)) if long else ()
        if (
            whole
            and all(step == 1 for axis, step in enumerate(steps) if result[axis] != 1)
            and all(shape[axis] == result[axis] for axis in between)
        ):
            return Run(result, view=offset * itemsize)
        params = kernels.copy(
            result,
            [stride * step for stride, step in zip(strides, steps, strict=True)],
            kernels.dense_strides(result),
            itemsize,
            in_offset=offset,
        )
        return Run(result, "NP_COPY", params=params)


@record
class Slice(SliceLike):
    """Slice by starts, ends and steps; bounds out of range are clamped as in ONNX.

    Attributes:
        bounds: starts, ends, axes and steps: numbers, the name of a value that follows from
            shapes, or None if omitted.
        order: layout of the operand.
    """

    mnemonic = "slice"
    bounds: tuple[tuple[int, ...] | str | None, ...]
    order: Perm

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return tuple(bound for bound in self.bounds if isinstance(bound, str))

    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """See `SliceLike.part`."""
        rank = len(self.order)
        starts, ends, axes, steps = (_listed(bound, sizing) for bound in self.bounds)
        if starts is None or ends is None:
            raise BackendError("a Slice lacks its starts or ends")
        axes = list(range(len(starts))) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        if not len(starts) == len(ends) == len(axes) == len(steps):
            raise BackendError("starts, ends, axes and steps of a Slice differ in length")
        found: Part = [0] * rank, list(shape), [1] * rank
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if not -rank <= axis < rank or step == 0:
                raise BackendError(f"a Slice of axis {axis} with step {step} is not valid")
            at = self.order.index(axis % rank)
            found[0][at], found[1][at] = _range(start, end, step, shape[at])
            found[2][at] = step
        return found


def _listed(bound: tuple[int, ...] | str | None, sizing: Sizing) -> list[int] | None:
    if isinstance(bound, str):
        return [int(item) for item in sizing.value(bound).reshape(-1)]
    return None if bound is None else list(bound)


@record
class SplitPart(SliceLike):
    """One output of a Split.

    Attributes:
        index: of the output.
        axis: of the Split, in the layout of the operand.
        count: number of outputs.
        sizes: of all outputs along the axis; empty if equal, with a smaller last one if needed.
    """

    mnemonic = "split_part"
    index: int
    axis: int
    count: int
    sizes: tuple[int, ...] = ()

    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """See `SliceLike.part`."""
        whole, parts = shape[self.axis], list(self.sizes)
        if not parts:
            each = -(-whole // self.count)
            parts = [min(each, max(0, whole - i * each)) for i in range(self.count)]
        if sum(parts) != whole or min(parts) < 0:
            raise BackendError(f"parts {parts} do not add up to axis {self.axis} of {list(shape)}")
        starts, result = [0] * len(shape), list(shape)
        starts[self.axis], result[self.axis] = sum(parts[: self.index]), parts[self.index]
        return starts, result, [1] * len(shape)


def _check_slice(op: Op, facts: Facts) -> str | None:
    if op.version >= 10 and not all(
        facts.is_fixed(value) for value in op.inputs[1:] if value is not None
    ):
        return "its bounds are computed from data"
    return check_movable(op, facts)


def _slice(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    bounds: list[tuple[int, ...] | str | None]
    if op.version < 10:
        listed = [op.get(name, None) for name in ("starts", "ends", "axes")]
        bounds = [None if bound is None else tuple(map(int, bound)) for bound in listed]
    else:
        bounds = [None if value is None else value.name or "" for value in op.inputs[1:]]
    bounds += [None] * (4 - len(bounds))
    builder.compute(Slice(tuple(bounds), perm), [builder.slot_of(given, perm)], op.output, perm)


def _range(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Return first index and count; bounds out of range are clamped as in ONNX."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
    else:
        start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    count = max(0, -(-(end - start) // step))
    return (start, count) if count else (0, 0)


def _split_sizes(op: Op, facts: Facts) -> list[int] | None:
    """Return the sizes of the outputs of a Split; None if they are equal."""
    if op.version < 13:
        listed = op.get("split", None)
        return None if listed is None else list(listed)
    array = facts.constant(op.input(1))
    return None if array is None else [int(size) for size in array.reshape(-1)]


def _check_split(op: Op, facts: Facts) -> str | None:
    if op.version >= 13 and op.input(1) is not None and not facts.is_constant(op.input(1)):
        return "the sizes of its parts are not constant"
    sizes = _split_sizes(op, facts)
    if sizes is not None and len(sizes) != len(op.outputs):
        return f"it has {len(op.outputs)} outputs for {len(sizes)} parts"
    return check_movable(op, facts)


def _split(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    slot = builder.slot_of(given, perm)
    axis = perm.index(op.get("axis", 0) % builder.rank(given))
    sizes = tuple(_split_sizes(op, builder.facts) or ())
    for index, output in enumerate(op.outputs):
        if output.name:
            part = SplitPart(index, axis, len(op.outputs), sizes)
            builder.compute(part, [slot], output, perm)


RULES: tuple[Rule, ...] = (
    *rules("Concat", lower=_concat, check=_check_concat),
    *rules("Slice", lower=_slice, check=_check_slice),
    *rules("Split", lower=_split, check=_check_split),
)
