"""Helpers for matching patterns of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Facts


@dataclass(frozen=True)
class Group:
    """Nodes that are fused into one operation.

    Attributes:
        kind: of the operation; see `Op.kind`.
        inputs: of the operation.
        nodes: the fused nodes; the outputs of the last one are those of the operation.
        attributes: of the operation.
    """

    kind: str
    inputs: Sequence[ir.Value | None]
    nodes: list[ir.Node]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the producer of `value`, if it is of one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types and not node.domain else None


def equals_scalar(facts: Facts, value: ir.Value | None, number: float) -> bool:
    """Return whether a value is a constant scalar equal to `number` in its dtype."""
    found = facts.scalar(value)
    return found is not None and equals_in_dtype(facts, value, found, number)


def equals_in_dtype(facts: Facts, value: ir.Value | None, found: float, number: float) -> bool:
    """Return whether `found` equals `number` in the precision of the dtype of `value`."""
    dtype = facts.dtype(value)
    if dtype in NARROW:
        return found == float(dtype.numpy().type(number))
    return math.isclose(found, number, rel_tol=1e-4)


def split_constant(node: ir.Node, facts: Facts) -> tuple[ir.Value, float] | None:
    """Return the operand and the scalar constant of a binary node; None if it has none."""
    if len(node.inputs) != 2:
        return None
    for operand, other in (node.inputs, reversed(node.inputs)):
        number = facts.scalar(other)
        if operand is not None and number is not None:
            return operand, number
    return None


def swaps_last_axes(transpose: ir.Node, facts: Facts) -> bool:
    """Return whether a Transpose exchanges the last two axes and no others."""
    perm, rank = transpose.attributes.get("perm"), facts.rank(transpose.inputs[0])
    if rank is None or rank < 2:
        return False
    axes = list(range(rank))
    axes[-2:] = axes[:-3:-1]
    return (list(range(rank))[::-1] if perm is None else list(perm.as_ints())) == axes


def is_exact_upcast(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node is a Cast between floats that does not round.

    Results of a narrow dtype are computed in float32, and a fused operation may read them before
    they are rounded.
    """
    if node.op_type != "Cast" or node.domain or not facts.is_float(node.inputs[0]):
        return False
    source, target = facts.dtype(node.inputs[0]), facts.dtype(node.outputs[0])
    return source == target or (source in NARROW and target == ir.DataType.FLOAT)


def is_downcast(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node is a Cast of float32 to a narrow float."""
    if node.op_type != "Cast" or node.domain:
        return False
    return (
        facts.dtype(node.inputs[0]) == ir.DataType.FLOAT and facts.dtype(node.outputs[0]) in NARROW
    )


def skip_casts(value: ir.Value | None, facts: Facts, *, narrowed: bool = False) -> ir.Value | None:
    """Return the source of a value, before casts between floats that do not round.

    Args:
        value: the value.
        facts: of the graph.
        narrowed: whether `value` may be rounded by a last Cast to a narrow float, for the operator
            that reads it. A Cast to a narrow float before an upcast is never skipped.
    """
    node = producer(value, "Cast")
    if narrowed and node is not None and is_downcast(node, facts):
        value = node.inputs[0]
        node = producer(value, "Cast")
    while node is not None and is_exact_upcast(node, facts):
        value = node.inputs[0]
        node = producer(value, "Cast")
    return value


def only_read_within(nodes: Sequence[ir.Node], facts: Facts) -> bool:
    """Return whether no other nodes read results of these nodes but those of the last one."""
    own = set(nodes)
    inner = [value for node in nodes[:-1] for value in node.outputs]
    read = [use.node for value in inner for use in value.uses()]
    return all(node in own for node in read) and not any(v.name in facts.needed for v in inner)


class Part:
    """A slice of a value along its last axis.

    Attributes:
        whole: the value.
        depth: the size of `whole` along that axis.
        range: indices of the slice along that axis.
    """

    def __init__(self, whole: ir.Value, depth: int, start: int, end: int, step: int) -> None:
        self.whole, self.depth = whole, depth
        self.range = range(depth)[start:end:step]

    def covers(self, start: int, end: int, step: int) -> bool:
        """Return whether the slice has these bounds."""
        return self.range == range(self.depth)[start:end:step]


def slice_of(value: ir.Value | None, facts: Facts) -> Part | None:
    """Return the Slice or Split along the last axis that computes a value; None if none does."""
    node = producer(value, "Slice", "Split")
    whole = None if node is None else node.inputs[0]
    dims = facts.dims(whole)
    if node is None or whole is None or not dims or not isinstance(dims[-1], int):
        return None
    depth, last = dims[-1], len(dims) - 1
    if node.op_type == "Split":
        if node.attributes.get_int("axis", 0) not in (-1, last):
            return None
        sizes = [(facts.dims(output) or (None,))[-1] for output in node.outputs]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes) or sum(known) != depth:
            return None
        index = next(at for at, output in enumerate(node.outputs) if output is value)
        return Part(whole, depth, sum(known[:index]), sum(known[: index + 1]), 1)
    bounds = [facts.constant(given) for given in node.inputs[1:]]
    if len(bounds) < 3 or any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, end, axis, *steps = (int(bound.reshape(-1)[0]) for bound in bounds if bound is not None)
    step = steps[0] if steps else 1
    return Part(whole, depth, start, end, step) if axis in (-1, last) and step > 0 else None
