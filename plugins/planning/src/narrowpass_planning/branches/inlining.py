"""Inlining: the nodes of a branch of an If in the graph around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.subgraphs import nested_graphs, reserve_name


@dataclass(frozen=True)
class Branch:
    """A branch of an If, out of its graph.

    Attributes:
        nodes: in order, in no graph.
        weights: initializers of the branch, in no graph.
        results: the outputs of the branch: values of the nodes, initializers, or outer values.
    """

    nodes: list[ir.Node]
    weights: list[ir.Value]
    results: list[ir.Value]


def branches(node: ir.Node) -> tuple[ir.Graph, ir.Graph]:
    """Return the branches of an If: where its condition holds, and where it does not."""
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    return then, other


def take_out(branch: ir.Graph, label: str, names: set[str | None]) -> Branch:
    """Return a copy of a branch, with names that are not taken, below `label`."""
    clone = branch.clone(allow_outer_scope_values=True)
    results, nodes = list(clone.outputs), list(clone)
    weights = list(clone.initializers.values())
    clone.outputs.clear()
    clone.remove(nodes)
    clone.initializers.clear()
    for value in (*weights, *(value for node in nodes for value in node.outputs)):
        if value.name:
            value.name = reserve_name(f"{label}/{value.name}", names)
    return Branch(nodes, weights, results)


def names_of(graph: ir.Graph) -> set[str | None]:
    """Return the names of all values of a graph and of those in it."""
    return {value.name for inner in nested_graphs(graph) for value in _values(inner)}


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
