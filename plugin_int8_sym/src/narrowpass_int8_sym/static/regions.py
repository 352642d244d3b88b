"""Pointwise regions: nodes that compute each element of their results from one of one tensor.

A GELU written as Div, Erf, Add, Mul and Mul is one, and so is x·sigmoid(x). Quantized as one, they
round once, and a backend can look their results up in a table of 256.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.static.operators import pointwise_operands

_Operands = Mapping[ir.Node, tuple[ir.Value, ...]]


@dataclass(frozen=True)
class Region:
    """Nodes that compute a value from another, element by element.

    Attributes:
        nodes: in the order of the graph.
        root: what they compute it from.
        result: the value, which others read.
    """

    nodes: tuple[ir.Node, ...]
    root: ir.Value
    result: ir.Value


def find_regions(nodes: Iterable[ir.Node], barred: Collection[ir.Node]) -> list[Region]:
    """Divide the pointwise nodes into regions with one result each; no node is in two.

    A node whose two operands are not of the same element is in none.

    Args:
        nodes: of a graph, in order.
        barred: nodes that are in no region.
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
    """Return the results that something else than a pointwise node reads, or nothing."""
    found = set()
    for node in operands:
        value = node.outputs[0]
        readers = [use.node for use in value.uses()]
        if value.is_graph_output() or not readers or any(r not in operands for r in readers):
            found.add(value)
    return found


def _region(
    result: ir.Value, root: ir.Value, operands: _Operands, ends: Collection[ir.Value]
) -> Region:
    """Go back from a result to its root."""
    inside: set[ir.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in inside:
            continue
        inside.add(node)
        waiting += [value for value in operands[node] if value is not root and value not in ends]
    return Region(tuple(node for node in operands if node in inside), root, result)
