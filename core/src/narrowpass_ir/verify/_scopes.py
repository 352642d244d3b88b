"""Which value a name means at a place in a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_ir.verify._problems import node_label


@dataclass(frozen=True)
class Scope:
    """The names that one graph defines up to the current node.

    Attributes:
        graph: the graph.
        where: the place of the graph for messages, empty for the main graph.
        names: what it defines so far.
        enclosing: the scope of the graph around it, None for the main graph or a function.
    """

    graph: ir.Graph
    where: str
    enclosing: Scope | None = None
    names: dict[str, ir.Value] = field(default_factory=dict)

    def find(self, name: str) -> tuple[ir.Value, Scope] | None:
        """Return the value that a name means here, and the scope that defines it."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value, scope
            scope = scope.enclosing
        return None

    def clash(self, name: str) -> str | None:
        """Return why a node may not name an output so; None if it may."""
        found = self.find(name)
        if found is None:
            return None
        other, scope = found
        kind = "is defined twice" if scope is self else "hides a value of an enclosing graph"
        return f"{kind}: also {_origin(other)}{scope.where}"

    def unresolved(self, value: ir.Value) -> str | None:
        """Return why a value cannot be used here; None if it can."""
        if not value.name:
            return "cannot be used, since it has no name"
        found = self.find(value.name)
        if found is not None:
            other, scope = found
            if other is value:
                return None
            return (
                "is another value than the one that its name means there, which is "
                f"{_origin(other)}{scope.where}"
            )
        home = value.graph
        producer = value.producer()
        if home is not None and not self._encloses(home):
            label = f"the graph {home.name!r}" if home.name else "another graph"
            return f"belongs to {label}, which cannot be seen there"
        if producer is None:
            return "is defined by nothing: no graph input, initializer or output of a node"
        if home is None:
            return f"is computed by {node_label(producer)}, which is in no graph"
        return f"is used before {node_label(producer)} computes it; sort the graph topologically"

    def missing_output(self, value: ir.Value) -> str | None:
        """Return why a value cannot be an output of this graph; None if it can."""
        name = value.name
        if not name:
            return "has no name"
        known = self.names.get(name)
        if known is not None:
            return None if known is value else "is not the value that has this name in the graph"
        found = self.find(name)
        if found is not None and found[0] is value:
            return "is a value of an enclosing graph; put an Identity node between"
        return "is produced by nothing in the graph"

    def _encloses(self, graph: ir.Graph) -> bool:
        scope: Scope | None = self
        while scope is not None:
            if scope.graph is graph:
                return True
            scope = scope.enclosing
        return False


def _origin(value: ir.Value) -> str:
    producer = value.producer()
    if producer is not None:
        return f"an output of {node_label(producer)}"
    return "an initializer" if value.is_initializer() else "a graph input"
