"""The names of a model's values and nodes: which are taken, and which stand for two values."""

from __future__ import annotations

import functools
from collections import Counter

import onnx_ir as ir

from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_ir.subgraphs import nested_graphs, subgraphs


class Names:
    """The names of one model, gathered when they are first asked for."""

    def __init__(self, model: ir.Model) -> None:
        """Take the model."""
        self._model = model

    def unique(self, name: str) -> str:
        """Return `name`, with a number where it is taken, and take it."""
        taken = self._taken
        chosen, number = name, 1
        while taken[chosen]:
            chosen = f"{name}.{number}"
            number += 1
        taken[chosen] += 1
        return chosen

    def hoisted_name(self, name: str | None) -> str | None:
        """Return the name for a value that moves to an outer graph: another if it is not alone."""
        if name is None or self._taken[name] <= 1:
            return name
        self._taken[name] -= 1
        return self.unique(name)

    def release(self, name: str) -> None:
        """Note that a graph no longer defines the name."""
        self._taken[name] -= 1

    def hoisted_node_name(self, name: str | None) -> str | None:
        """Return the name for a node that moves to an outer graph: another if it is not alone.

        ONNX leaves names of nodes free, but onnxruntime refuses a graph that has one twice.
        """
        if not name or self._nodes[name] <= 1:
            return name
        self._nodes[name] -= 1
        return self.unique_node(name)

    def unique_node(self, name: str | None) -> str | None:
        """Return `name` for a new node, with a number where it is taken, and take it."""
        if not name:
            return name
        chosen, number = name, 1
        while self._nodes[chosen]:
            chosen = f"{name}.{number}"
            number += 1
        self._nodes[chosen] += 1
        return chosen

    def release_node(self, name: str | None) -> None:
        """Note that a node of that name is gone."""
        if name:
            self._nodes[name] -= 1

    def is_shadowed(self, name: str | None) -> bool:
        """Whether a graph defines the name though it is already visible there from outside.

        There, moving a use of a value into that graph might capture the other value.
        """
        return name in self._twice

    @functools.cached_property
    def _taken(self) -> Counter[str]:
        return Counter(
            name
            for root in roots(self._model)
            for graph in nested_graphs(root.graph)
            for name in _defined(graph)
        )

    @functools.cached_property
    def _nodes(self) -> Counter[str]:
        return Counter(
            node.name
            for root in roots(self._model)
            for graph in nested_graphs(root.graph)
            for node in graph
            if node.name
        )

    @functools.cached_property
    def _twice(self) -> frozenset[str]:
        twice: set[str] = set()
        for root in roots(self._model):
            _find_twice(root.graph, set(), twice)
        return frozenset(twice)


def _find_twice(graph: ir.Graph, visible: set[str], twice: set[str]) -> None:
    """Add to `twice` what `graph`, or one within it, defines though it is visible there."""
    own = _defined(graph)
    twice |= own & visible
    added = own - visible
    visible |= added
    for node in graph:
        for subgraph in subgraphs(node):
            _find_twice(subgraph, visible, twice)
    visible -= added


def _defined(graph: ir.Graph) -> set[str]:
    names = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    names.update(value.name for node in graph for value in node.outputs)
    return {name for name in names if name}
