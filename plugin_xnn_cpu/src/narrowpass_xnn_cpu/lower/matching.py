"""What patterns of nodes are found with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from narrowpass_xnn_cpu.lower.facts import NARROW, Facts


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
