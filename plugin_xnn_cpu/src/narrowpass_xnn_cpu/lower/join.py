"""Operators that put tensors together or take parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.layout import common_layout
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs
from narrowpass_xnn_cpu.lower.shape import MOVED, check_moved
from narrowpass_xnn_cpu.native import kernels

_LONG = 1 << 10
"""What a dimension that is not known counts as."""

Part = tuple[list[int], list[int], list[int]]
"""Where a part starts, its size, and its step, for each axis."""


class Joined(Step):
    """One piece of a concatenation, written to its place.

    Args:
        slots: all pieces.
        index: of the piece that this step writes.
        output: what all of them form.
        axis: along which they are joined.
        rank: of all of them.
    """

    kernel = "copy"

    def __init__(
        self, slots: Sequence[Slot], index: int, output: Slot, axis: int, rank: int
    ) -> None:
        super().__init__([slots[index], *slots], output)
        self._index = index
        self._axis = axis
        self._rank = rank
        self._left = False

    @property
    def alike(self) -> Hashable:
        """See `Step.alike`."""
        return self._index, self._axis, self._left, self.output.dtype.itemsize

    def joins_rows(self) -> bool:
        """Tell whether pieces of floats are joined along the last axis but one."""
        return self._axis == self._rank - 2 and self.output.dtype == np.float32

    def leave(self) -> None:
        """Leave the copy of this piece to who reads all of them, unless one of them is empty."""
        self._left = True

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        piece, *all_pieces = shapes
        axis = self._axis
        for shape in all_pieces:
            if shape[:axis] != piece[:axis] or shape[axis + 1 :] != piece[axis + 1 :]:
                raise BackendError(f"{list(piece)} and {list(shape)} do not join at axis {axis}")
        whole = sum(shape[axis] for shape in all_pieces)
        result = (*piece[:axis], whole, *piece[axis + 1 :])
        if not elements(piece) or (self._left and all(map(elements, all_pieces))):
            return Run(result)
        strides = kernels.dense_strides(result)
        before = sum(shape[axis] for shape in all_pieces[: self._index])
        params = kernels.copy(
            piece,
            kernels.dense_strides(piece),
            strides,
            self.output.dtype.itemsize,
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


@lowers("Concat", check=_check_concat)
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
    for index in range(len(slots)):
        builder.emit(Joined(slots, index, output, axis, rank))
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


class Sliced(Step):
    """A part of a tensor: a view where it is dense, a copy where it is not."""

    kernel = "copy"

    def __init__(
        self,
        given: Slot,
        output: Slot,
        part: Callable[[Shape, Sizing], Part],
        values: Sequence[str] = (),
    ) -> None:
        super().__init__([given], output)
        self.values = tuple(values)
        self._part = part

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        starts, sizes, steps = self._part(shape, sizing)
        result = tuple(sizes)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(shape)
        offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
        itemsize = self.output.dtype.itemsize
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


def _check_slice(op: Op, facts: Facts) -> str | None:
    if op.version >= 10 and not all(
        facts.is_fixed(value) for value in op.inputs[1:] if value is not None
    ):
        return "its bounds are computed from data"
    return check_moved(op, facts)


@lowers("Slice", check=_check_slice)
def _slice(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    perm = builder.layout(given)
    operands = [None if value is None else value.name or "" for value in op.inputs[1:]]
    names = [*operands, *[None] * (4 - len(operands))] if op.version >= 10 else [None] * 4
    attributes = [op.get(name, None) for name in ("starts", "ends", "axes")]

    def part(shape: Shape, sizing: Sizing) -> Part:
        read = [
            None if name is None else [int(item) for item in sizing.value(name).reshape(-1)]
            for name in names
        ]
        if op.version < 10:
            read = [*attributes, None]
        starts, ends, axes, steps = read
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
            at = perm.index(axis % rank)
            found[0][at], found[1][at] = _range(start, end, step, shape[at])
            found[2][at] = step
        return found

    step = Sliced(
        builder.at(given, perm), builder.new(op.output), part, [n for n in names if n is not None]
    )
    builder.emit(step, op.output, perm)


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


@lowers("Split", check=_check_split)
def _split(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    perm = builder.layout(given)
    slot = builder.at(given, perm)
    axis = perm.index(op.get("axis", 0) % rank)
    sizes = _split_sizes(op, builder.facts)
    count = len(op.outputs)

    for index, output in enumerate(op.outputs):

        def part(shape: Shape, sizing: Sizing, index: int = index) -> Part:
            if sizes is None:
                each = -(-shape[axis] // count)
                parts = [min(each, max(0, shape[axis] - i * each)) for i in range(count)]
            else:
                parts = sizes
            if sum(parts) != shape[axis] or min(parts) < 0:
                raise BackendError(f"parts {parts} do not make up axis {axis} of {list(shape)}")
            starts, result = [0] * rank, list(shape)
            starts[axis], result[axis] = sum(parts[:index]), parts[index]
            return starts, result, [1] * rank

        if output.name:
            builder.emit(Sliced(slot, builder.new(output), part), output, perm)
