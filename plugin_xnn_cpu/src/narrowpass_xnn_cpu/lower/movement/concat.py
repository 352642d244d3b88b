"""Operators that put tensors together or take parts of them."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.layout import common_layout
from narrowpass_xnn_cpu.lower.movement.axes import MOVED, check_moved
from narrowpass_xnn_cpu.lower.op import Op, needs
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedOp, Perm
from narrowpass_xnn_cpu.native import kernels

_LONG = 1 << 10
"""What a dimension that is not known counts as."""

Part = tuple[list[int], list[int], list[int]]
"""Where a part starts, its size, and its step, for each axis."""


@dataclass(frozen=True)
class ConcatPiece(Computation):
    """One piece of a concatenation, written to its place.

    Operands are the piece, then all pieces; all of these write the same slot.

    Attributes:
        index: of the piece that is written.
        axis: along which they are concatenated.
        rank: of the pieces.
        deferred: whether the copy is left to the operation that reads all pieces, unless one of
            them is empty.
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
        """See `Computation.shares_output`: each piece has its place."""
        return isinstance(other, ConcatPiece) and other.index != self.index

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        piece, *all_pieces = shapes
        axis, itemsize = self.axis, step.op.output.dtype.itemsize
        for shape in all_pieces:
            if shape[:axis] != piece[:axis] or shape[axis + 1 :] != piece[axis + 1 :]:
                raise BackendError(f"{list(piece)} and {list(shape)} do not join at axis {axis}")
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
        reason = None if value is None else needs(value, facts, *MOVED)
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
    perm = _joining_layout(op, values, builder)
    if len(values) == 1:
        builder.alias(op.output, builder.at(values[0], perm), perm)
        return
    slots = [builder.at(value, perm) for value in values]
    output = builder.new(op.output)
    axis = perm.index(op.get("axis", 1) % rank)
    for index, slot in enumerate(slots):
        builder.emit(ConcatPiece(index, axis, rank), [slot, *slots], output)
    builder.alias(op.output, output, perm)


def _joining_layout(op: Op, values: Sequence[ir.Value], builder: Builder) -> Perm:
    """Choose the order of axes to join in: the one for which fewest elements move.

    What comes from outside of the partition, or goes there, lies in ONNX's order: a cache is
    joined in that order, and the few new rows move. Dimensions that are not known count as long.
    """
    facts, rank = builder.facts, builder.rank(values[0])
    found = common_layout(builder, values, rank)
    candidates = dict.fromkeys([found, *map(builder.layout, values), identity(rank)])

    def moved(value: ir.Value, perm: Perm) -> int:
        dims = [dim if isinstance(dim, int) else _LONG for dim in facts.dims(value) or ()]
        if builder.has(value, perm) or _keeps(builder.layout(value), perm, dims):
            return 0
        return math.prod(dims)

    def cost(perm: Perm) -> int:
        total = sum(moved(value, perm) for value in values if not facts.is_constant(value))
        if _leaves(op.output, facts):
            total += moved(op.output, perm)
        return total

    return min(candidates, key=cost)


def _keeps(source: Perm, perm: Perm, dims: Sequence[int]) -> bool:
    """Tell whether only axes of size 1 change places."""
    long = [[axis for axis in order if dims[axis] != 1] for order in (source, perm)]
    return long[0] == long[1]


def _leaves(value: ir.Value, facts: Facts) -> bool:
    """Tell whether a value is given out of the method, by itself or by another name."""
    if value.name in facts.given:
        return True
    users = (use.node for use in value.uses())
    return any(u.op_type == "Identity" and u.outputs[0].name in facts.given for u in users)


class SliceLike(Computation):
    """A part of a tensor: a view where it is dense, a copy where it is not."""

    kernel = "copy"

    @abc.abstractmethod
    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """Return where the part starts, its sizes and its steps, along each axis of the slot.

        Raises:
            BackendError: there is no such part.
        """

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        starts, sizes, steps = self.part(shape, sizing)
        result = tuple(sizes)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(shape)
        offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
        itemsize = step.op.output.dtype.itemsize
        # Dense: after the first axis that is longer than 1, all axes are whole.
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


@dataclass(frozen=True)
class Slice(SliceLike):
    """A part of a tensor by starts, ends and steps, with ONNX's rules for bounds out of range.

    Attributes:
        bounds: starts, ends, axes and steps: numbers, the name of a value from shapes, or None
            where they are left out.
        order: the order in which the axes of the operand lie.
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
                raise BackendError(f"a Slice of axis {axis} with step {step} makes no sense")
            at = self.order.index(axis % rank)
            found[0][at], found[1][at] = _range(start, end, step, shape[at])
            found[2][at] = step
        return found


def _listed(bound: tuple[int, ...] | str | None, sizing: Sizing) -> list[int] | None:
    if isinstance(bound, str):
        return [int(item) for item in sizing.value(bound).reshape(-1)]
    return None if bound is None else list(bound)


@dataclass(frozen=True)
class SplitPart(SliceLike):
    """One of the parts that an axis is split into.

    Attributes:
        index: of the part.
        axis: that is split, as the operand lies.
        count: of the parts.
        sizes: of the parts; empty where they are equal, the last one smaller if need be.
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
            raise BackendError(f"parts {parts} do not make up axis {self.axis} of {list(shape)}")
        starts, result = [0] * len(shape), list(shape)
        starts[self.axis], result[self.axis] = sum(parts[: self.index]), parts[self.index]
        return starts, result, [1] * len(shape)


def _check_slice(op: Op, facts: Facts) -> str | None:
    if op.version >= 10 and not all(
        facts.is_fixed(value) for value in op.inputs[1:] if value is not None
    ):
        return "its bounds are computed from data"
    return check_moved(op, facts)


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
    builder.compute(Slice(tuple(bounds), perm), [builder.at(given, perm)], op.output, perm)


def _range(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Give the first index and the count, by ONNX's rules for bounds out of range."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
    else:
        start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    count = max(0, -(-(end - start) // step))
    return (start, count) if count else (0, 0)


def _split_sizes(op: Op, facts: Facts) -> list[int] | None:
    """Give the sizes of the parts; None where they are equal."""
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
    return check_moved(op, facts)


def _split(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    slot = builder.at(given, perm)
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
