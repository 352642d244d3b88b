"""The graphs of a model, and what a node reads from outside of its own subgraphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.subgraphs import nested_graphs, subgraphs

FIRST_IR_WITH_PLAIN_INITIALIZERS = 4
"""Before it, each initializer has to be an input of the graph as well."""


@dataclass(frozen=True)
class Root:
    """The graph of the model, or the body of a model-local function.

    Attributes:
        graph: the graph; nested ones are reached through its nodes.
        opsets: versions of the operator sets by domain, also for nested graphs.
        is_function: whether this is the body of a function.
    """

    graph: ir.Graph
    opsets: Mapping[str, int]
    is_function: bool


def roots(model: ir.Model) -> Iterator[Root]:
    """Yield the model's graph and the bodies of its functions."""
    yield Root(model.graph, model.opset_imports, is_function=False)
    for function in model.functions.values():
        yield Root(function.graph, function.opset_imports, is_function=True)


def inner_nodes(node: ir.Node) -> Iterator[ir.Node]:
    """Yield every node within the node's subgraphs, at any depth."""
    for graph in subgraphs(node):
        for nested in nested_graphs(graph):
            yield from nested


def captured(node: ir.Node) -> dict[ir.Value, int]:
    """Return the outer values that the node's subgraphs read, with the number of their uses."""
    inside: set[ir.Value] = set()
    used: Counter[ir.Value] = Counter()
    for graph in subgraphs(node):
        for nested in nested_graphs(graph):
            inside.update(nested.inputs)
            inside.update(nested.initializers.values())
            used.update(nested.outputs)
            for inner in nested:
                inside.update(inner.outputs)
                used.update(value for value in inner.inputs if value is not None)
    return {value: uses for value, uses in used.items() if value not in inside}


def is_used(value: ir.Value) -> bool:
    """Whether a node or a graph output reads the value."""
    return value.is_graph_output() or bool(value.uses())


def output_positions(graph: ir.Graph) -> dict[ir.Value, list[int]]:
    """Return the places of each of the graph's outputs."""
    positions: dict[ir.Value, list[int]] = {}
    for index, value in enumerate(graph.outputs):
        positions.setdefault(value, []).append(index)
    return positions


def remove_nodes(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Remove unused nodes, with all uses by them and by their subgraphs.

    Takes time in proportion to `nodes` and the graph's outputs, so call it once for many.
    """
    for node in nodes:
        for inner in inner_nodes(node):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
    graph.remove(nodes, safe=True)
