"""What patterns of nodes are found with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Facts


@dataclass(frozen=True)
class Group:
    """Nodes that are computed as one operation.

    Attributes:
        kind: what is done; see `Op.kind`.
        inputs: of the operation.
        nodes: that it stands for; the outputs of the last one are its outputs.
        attributes: of the operation.
    """

    kind: str
    inputs: Sequence[ir.Value | None]
    nodes: list[ir.Node]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Give the node that makes `value`, if it is of one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types and not node.domain else None


def is_number(facts: Facts, value: ir.Value | None, number: float) -> bool:
    """Tell whether a value is a constant scalar that is `number`, as far as its type goes."""
    found = facts.scalar(value)
    return found is not None and is_near(facts, value, found, number)


def is_near(facts: Facts, value: ir.Value | None, found: float, number: float) -> bool:
    """Tell whether `found` is `number`, as the type of `value` has it."""
    dtype = facts.dtype(value)
    if dtype in NARROW:
        return found == float(dtype.numpy().type(number))
    return math.isclose(found, number, rel_tol=1e-4)


def with_constant(node: ir.Node, facts: Facts) -> tuple[ir.Value, float] | None:
    """Give the operand and the number of an operation with a scalar constant, in either order."""
    if len(node.inputs) != 2:
        return None
    for operand, other in (node.inputs, reversed(node.inputs)):
        number = facts.scalar(other)
        if operand is not None and number is not None:
            return operand, number
    return None


def is_swap(transpose: ir.Node, facts: Facts) -> bool:
    """Tell whether a Transpose changes the last two axes and no others."""
    perm, rank = transpose.attributes.get("perm"), facts.rank(transpose.inputs[0])
    if rank is None or rank < 2:
        return False
    axes = list(range(rank))
    axes[-2:] = axes[:-3:-1]
    return (list(range(rank))[::-1] if perm is None else list(perm.as_ints())) == axes


def widens(node: ir.Node, facts: Facts) -> bool:
    """Tell whether a node is a Cast between floats that rounds nothing.

    What an operator makes of a narrow type is computed in float32, and may be read so by what is
    computed together with it.
    """
    if node.op_type != "Cast" or node.domain or not facts.is_float(node.inputs[0]):
        return False
    source, target = facts.dtype(node.inputs[0]), facts.dtype(node.outputs[0])
    return source == target or (source in NARROW and target == ir.DataType.FLOAT)


def narrows(node: ir.Node, facts: Facts) -> bool:
    """Tell whether a node is a Cast of float32 to a narrow type."""
    if node.op_type != "Cast" or node.domain:
        return False
    return (
        facts.dtype(node.inputs[0]) == ir.DataType.FLOAT and facts.dtype(node.outputs[0]) in NARROW
    )


def uncast(value: ir.Value | None, facts: Facts, *, narrowed: bool = False) -> ir.Value | None:
    """Look behind casts between floats that round nothing: what lies between is float32 here.

    Args:
        value: what is looked at.
        facts: of the graph.
        narrowed: whether `value` may have been rounded to a narrow type for the one operator that
            reads it. Of such a type it is; what is then widened again is to be rounded.
    """
    node = producer(value, "Cast")
    if narrowed and node is not None and narrows(node, facts):
        value = node.inputs[0]
        node = producer(value, "Cast")
    while node is not None and widens(node, facts):
        value = node.inputs[0]
        node = producer(value, "Cast")
    return value


def are_for(nodes: Sequence[ir.Node], facts: Facts) -> bool:
    """Tell whether what nodes make is read by them alone, but for what the last one makes."""
    own = set(nodes)
    made = [value for node in nodes[:-1] for value in node.outputs]
    read = [use.node for value in made for use in value.uses()]
    return all(node in own for node in read) and not any(v.name in facts.needed for v in made)


class Part:
    """A part of a value along its last axis.

    Attributes:
        whole: the value.
        depth: its size along that axis.
        range: the places along it that the part is of.
    """

    def __init__(self, whole: ir.Value, depth: int, start: int, end: int, step: int) -> None:
        self.whole, self.depth = whole, depth
        self.range = range(depth)[start:end:step]

    def is_from(self, start: int, end: int, step: int) -> bool:
        """Tell whether the part is this one."""
        return self.range == range(self.depth)[start:end:step]


def part(value: ir.Value | None, facts: Facts) -> Part | None:
    """Give what a value is a part of, along its last axis; None where it is none."""
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
