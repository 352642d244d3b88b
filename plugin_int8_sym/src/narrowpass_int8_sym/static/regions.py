"""Pointwise regions: nodes that together compute an elementwise function of one tensor.

A GELU written as Div, Erf, Add, Mul and Mul is one, and so is x·sigmoid(x). Quantized as one unit,
they round once, and a backend can compute them with a lookup table of 256 entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.static.operators import pointwise_operands

_Operands = Mapping[ir.Node, tuple[ir.Value, ...]]


@dataclass(frozen=True)
class PointwiseRegion:
    """Nodes that compute an elementwise function of one tensor.

    Attributes:
        nodes: in the order of the graph.
        root: the operand of the function.
        result: its result, which other nodes read.
    """

    nodes: tuple[ir.Node, ...]
    root: ir.Value
    result: ir.Value


def find_pointwise_regions(
    nodes: Iterable[ir.Node], barred: Collection[ir.Node]
) -> list[PointwiseRegion]:
    """Partition the pointwise nodes into regions with one result each.

    A node whose two operands do not follow from the same element is in none.

    Args:
        nodes: of a graph, in order.
        barred: nodes that must be in no region.
    """
    operands = {
        node: found
        for node in nodes
        if node not in barred and (found := pointwise_operands(node)) is not None
    }
    cuts: set[ir.Value] = set()
    while True:
        ends = _ends(operands) | cuts
        roots: dict[ir.Value, ir.Value] = {}
        joins = []
        for node, found in operands.items():
            sources = {roots.get(v, v) if v not in ends else v for v in found}
            if len(sources) == 1:
                roots[node.outputs[0]] = sources.pop()
            else:
                joins.append(node)
        if joins:
            operands = {node: found for node, found in operands.items() if node not in joins}
            continue
        regions = [_region(value, roots[value], operands, ends) for value in roots if value in ends]
        uses = Counter(node for region in regions for node in region.nodes)
        shared = {node.outputs[0] for node, count in uses.items() if count > 1}
        if not shared:
            return regions
        cuts |= shared


def _ends(operands: _Operands) -> set[ir.Value]:
    """Return the results that have a consumer that is not pointwise, or no consumer."""
    found = set()
    for node in operands:
        value = node.outputs[0]
        readers = [use.node for use in value.uses()]
        if value.is_graph_output() or not readers or any(r not in operands for r in readers):
            found.add(value)
    return found


def _region(
    result: ir.Value, root: ir.Value, operands: _Operands, ends: Collection[ir.Value]
) -> PointwiseRegion:
    """Collect the nodes between a root and a result."""
    inside: set[ir.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in inside:
            continue
        inside.add(node)
        waiting += [value for value in operands[node] if value is not root and value not in ends]
    return PointwiseRegion(tuple(node for node in operands if node in inside), root, result)
