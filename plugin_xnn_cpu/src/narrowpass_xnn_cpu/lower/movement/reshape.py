"""Reshape as a view, in a layout of operand and result in which no elements are copied."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.movement.axes import check_movable
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.sizes import Size
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of the input, and the axes of the result that they are merged or split to."""


@record
class ReshapeTo(Computation):
    """A view of the operand with the dimensions that a value holds.

    Attributes:
        target: name of the value that holds the target shape, in the order of ONNX.
        zero_is_zero: whether 0 in the target is a size (``allowzero``), not a copied dimension.
        source: layout of the operand.
        order: layout of the result.
        groups: groups of axes that must have equal numbers of elements for these layouts to be
            valid.
    """

    mnemonic = "reshape_to"
    kernel = "view"
    target: str
    zero_is_zero: bool
    source: Perm
    order: Perm
    groups: tuple[Group, ...] = ()

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return (self.target,)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        target = [int(dim) for dim in sizing.value(self.target).reshape(-1)]
        logical = [0] * len(shape)
        for axis, size in zip(self.source, shape, strict=True):
            logical[axis] = size
        dims = _reshaped(logical, target, zero_is_zero=self.zero_is_zero)
        for axes, others in self.groups:
            if elements([logical[a] for a in axes]) != elements([dims[a] for a in others]):
                raise BackendError(
                    f"{logical} and {dims} cannot be merged and split in groups {self.groups}"
                )
        if len(dims) != len(self.order):
            raise BackendError(
                f"value {step.op.output.name!r} is declared with {len(self.order)} dimensions, "
                f"but is reshaped to {dims}"
            )
        return Run(tuple(dims[axis] for axis in self.order), view=0)


def _reshaped(shape: Sequence[int], target: Sequence[int], *, zero_is_zero: bool) -> list[int]:
    """Return the shape after a Reshape to a target with 0 and -1."""
    dims = list(target)
    for axis, dim in enumerate(target):
        if dim == 0 and not zero_is_zero:
            if axis >= len(shape):
                raise BackendError(f"{list(shape)} has no axis {axis} to copy to {target}")
            dims[axis] = shape[axis]
    free = [axis for axis, dim in enumerate(dims) if dim < 0]
    if len(free) == 1:
        rest = elements([dim for dim in dims if dim >= 0])
        dims[free[0]] = elements(shape) // rest if rest else 0
    if len(free) > 1 or elements(dims) != elements(shape):
        raise BackendError(f"{list(shape)} cannot be reshaped to {target}")
    return dims


def _groups(before: Sequence[Size], after: Sequence[Size | None]) -> list[Group] | None:
    """Split a reshape into groups of axes with equal numbers of elements; None if not known.

    A symbolic dimension may be matched with the same symbol, or with an unknown one if it is the
    only one of the input.
    """
    alone = sum(not isinstance(size, int) for size in before) == 1
    if 0 in before or 0 in after:
        return None
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        axes: list[int] = []
        others: list[int] = []
        left = right = 1
        while True:
            take_left = left <= right and i < len(before) and (left < right or not axes)
            at, dims = (i, before) if take_left else (j, after)
            if at >= len(dims):
                return None
            dim = dims[at]
            if not isinstance(dim, int):
                # A symbolic dimension must be matched alone.
                other = after[j] if j < len(after) else 0
                same = dim == other or (alone and not isinstance(other, int))
                if axes or others or not take_left or not same:
                    return None
                axes, others = [i], [j]
                i, j = i + 1, j + 1
                break
            if take_left:
                axes.append(i)
                left, i = left * dim, i + 1
            else:
                others.append(j)
                right, j = right * dim, j + 1
            if left == right and axes and others:
                break
        groups.append((tuple(axes), tuple(others)))
    return groups


def _orders(groups: Sequence[Group], perm: Perm) -> tuple[Perm, Perm]:
    """Return layouts of operand and result in which a reshape is a view; the first is near `perm`.

    Axes that are merged must be adjacent and in order; a group is placed at its last axis.
    """
    places = {axis: place for place, axis in enumerate(perm)}
    ordered = sorted(groups, key=lambda group: max((places[a] for a in group[0]), default=-1))
    source = tuple(axis for axes, _ in ordered for axis in axes)
    return source, tuple(axis for _, others in ordered for axis in others)


def _check_reshape(op: Op, facts: Facts) -> str | None:
    if op.version < 5:
        return "operator sets below 5 are not covered"
    if not facts.is_fixed(op.input(1)):
        return "its target shape is computed from data"
    if facts.rank(op.output) is None:
        return "the rank of its output is not known"
    return check_movable(op, facts)


def _reshape(op: Op, builder: Builder) -> None:
    given, target = op.required(0), op.required(1).name or ""
    source = builder.layout(given)
    order = identity(builder.rank(op.output))
    groups: Sequence[Group] = ()
    if source != identity(len(source)):
        # Splitting channels, or merging height and width, is a view in NHWC too.
        found = _reshape_groups(op, builder.facts)
        if found is None:
            source = identity(len(source))
        else:
            groups = found
            source, order = _orders(groups, source)
    reshape = ReshapeTo(target, bool(op.get("allowzero", 0)), source, order, tuple(groups))
    builder.compute(reshape, [builder.slot_of(given, source)], op.output, order)


def _reshape_groups(op: Op, facts: Facts) -> list[Group] | None:
    before = sizes.dimensions(op.input(0), facts)
    copies = not op.get("allowzero", 0)
    target = sizes.reshaped_to(op.input(0), op.input(1), facts, copies=copies)
    after: Sequence[Size | None] | None = facts.dims(op.output)
    if target is not None and after is not None and len(target) == len(after):
        after = [
            size if isinstance(size, int) or other == -1 else other
            for size, other in zip(after, target, strict=True)
        ]
    return None if before is None or after is None else _groups(before, after)


RULES: tuple[Rule, ...] = (*rules("Reshape", lower=_reshape, check=_check_reshape),)
