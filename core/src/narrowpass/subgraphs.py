"""The graphs within a graph: bodies and branches of control flow."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Give the graphs among a node's attributes; not those within them."""
    if not node.attributes:  # most nodes; this is asked often
        return
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def nested_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Give `graph` and every graph within it, outer ones first."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += [inner for node in current for inner in subgraphs(node)]
