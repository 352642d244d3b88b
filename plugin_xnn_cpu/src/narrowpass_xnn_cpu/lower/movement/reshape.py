"""Reshape: the same elements with other dimensions, in whichever order of axes that is a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower import sizes
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.movement.axes import check_moved
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.sizes import Size
from narrowpass_xnn_cpu.lowered.op import Computation, PackedOp, Perm

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of a value, and the axes of a reshaped one that hold the same elements."""


@dataclass(frozen=True)
class ReshapeTo(Computation):
    """The same elements with the dimensions that a value names: never a copy.

    Attributes:
        target: name of the value that has the dimensions, in ONNX's order.
        zero_is_zero: whether a 0 there is one, rather than the input's dimension.
        source: the order of axes of the operand.
        order: the order of axes of the result.
        groups: axes that must hold equal numbers of elements for these orders to be right.
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

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        target = [int(dim) for dim in sizing.value(self.target).reshape(-1)]
        logical = [0] * len(shape)
        for axis, size in zip(self.source, shape, strict=True):
            logical[axis] = size
        dims = _reshaped(logical, target, zero_is_zero=self.zero_is_zero)
        for axes, others in self.groups:
            if elements([logical[a] for a in axes]) != elements([dims[a] for a in others]):
                raise BackendError(f"{logical} and {dims} do not split where they were to")
        if len(dims) != len(self.order):
            raise BackendError(
                f"value {step.op.output.name!r} is declared with {len(self.order)} dimensions, "
                f"but comes out as {dims}"
            )
        return Run(tuple(dims[axis] for axis in self.order), view=0)


def _reshaped(shape: Sequence[int], target: Sequence[int], *, zero_is_zero: bool) -> list[int]:
    """Give the dimensions that a target of a Reshape means for a shape."""
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
        raise BackendError(f"{list(shape)} cannot be given the shape {target}")
    return dims


def _groups(before: Sequence[Size], after: Sequence[Size | None]) -> list[Group] | None:
    """Cut a reshape into groups of axes of equal products; None where sizes are not known enough.

    A dimension that is no number may stand opposite the same one, or one that is not known if it
    is the only one of its side.
    """
    alone = sum(not isinstance(size, int) for size in before) == 1
    if 0 in before or 0 in after:
        return None
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        axes: list[int] = []
        made: list[int] = []
        left = right = 1
        while True:
            take_left = left <= right and i < len(before) and (left < right or not axes)
            at, dims = (i, before) if take_left else (j, after)
            if at >= len(dims):
                return None
            dim = dims[at]
            if not isinstance(dim, int):
                # It must meet the other side's, and be alone.
                other = after[j] if j < len(after) else 0
                same = dim == other or (alone and not isinstance(other, int))
                if axes or made or not take_left or not same:
                    return None
                axes, made = [i], [j]
                i, j = i + 1, j + 1
                break
            if take_left:
                axes.append(i)
                left, i = left * dim, i + 1
            else:
                made.append(j)
                right, j = right * dim, j + 1
            if left == right and axes and made:
                break
        groups.append((tuple(axes), tuple(made)))
    return groups


def _orders(groups: Sequence[Group], perm: Perm) -> tuple[Perm, Perm]:
    """Give the order of axes nearest to `perm` in which a reshape is a view, and the result's.

    Axes that become one must lie side by side, in turn; groups stay where their last axis lies.
    """
    places = {axis: place for place, axis in enumerate(perm)}
    ordered = sorted(groups, key=lambda group: max((places[a] for a in group[0]), default=-1))
    source = tuple(axis for axes, _ in ordered for axis in axes)
    return source, tuple(axis for _, made in ordered for axis in made)


def _check_reshape(op: Op, facts: Facts) -> str | None:
    if op.version < 5:
        return "operator sets below 5 are not covered"
    if not facts.is_fixed(op.input(1)):
        return "its target shape is computed from data"
    if facts.rank(op.output) is None:
        return "the rank of its output is not known"
    return check_moved(op, facts)


def _reshape(op: Op, builder: Builder) -> None:
    given, target = op.required(0), op.required(1).name or ""
    source = builder.layout(given)
    order = identity(builder.rank(op.output))
    groups: Sequence[Group] = ()
    if source != identity(len(source)):
        # Splitting channels, or joining rows and columns, leaves pixels where they are.
        found = _cut(op, builder.facts)
        if found is None:
            source = identity(len(source))
        else:
            groups = found
            source, order = _orders(groups, source)
    reshape = ReshapeTo(target, bool(op.get("allowzero", 0)), source, order, tuple(groups))
    builder.compute(reshape, [builder.at(given, source)], op.output, order)


def _cut(op: Op, facts: Facts) -> list[Group] | None:
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
