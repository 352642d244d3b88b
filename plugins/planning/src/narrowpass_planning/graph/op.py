"""The unit of planning, an operation: one ONNX node, or several that are fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import onnx_ir as ir

from narrowpass_ir.subgraphs import subgraphs

OUR_DOMAIN = "narrowpass.planning"
"""Of nodes that only the planner writes."""

GUARD = "Guard"
"""A node that says which value a condition had when its graph was compiled."""


@dataclass
class Op:
    """One operation to plan: an ONNX node, or several that are fused.

    A backend may have a subclass, with what it fuses.

    Attributes:
        kind: the ONNX operator that it does, or a backend's own name in lower case.
        inputs: as of that operator; None for those left out.
        outputs: as of that operator.
        attributes: as of that operator, those that are present.
        version: of the operator set.
        nodes: the nodes that it stands for.
        superseded: nodes before it whose results are unused since it was fused.
    """

    kind: str
    inputs: Sequence[ir.Value | None]
    outputs: Sequence[ir.Value]
    attributes: Mapping[str, Any]
    version: int
    nodes: list[ir.Node] = field(default_factory=list)
    superseded: list[ir.Node] = field(default_factory=list, kw_only=True)

    @classmethod
    def of(cls, node: ir.Node, version: int) -> Self:
        """Return the operation of one node."""
        attributes = {
            name: value.value
            for name, value in node.attributes.items()
            if not value.is_ref() and value.type != ir.AttributeType.GRAPH
        }
        return cls(
            kind=node.op_type,
            inputs=list(node.inputs),
            outputs=list(node.outputs),
            attributes=attributes,
            version=version,
            nodes=[node],
        )

    def input(self, index: int) -> ir.Value | None:
        """Return an input; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def required(self, index: int) -> ir.Value:
        """Return an input that the operator must have."""
        value = self.input(index)
        if value is None:
            raise ValueError(f"{self.kind} lacks input {index}")
        return value

    @property
    def output(self) -> ir.Value:
        """The first output."""
        return self.outputs[0]

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def reads(self) -> list[ir.Value]:
        """Return the values that it reads, those read in its subgraphs included; each once."""
        found = [value for value in self.inputs if value is not None]
        for node in self.nodes:
            for graph in subgraphs(node):
                found += captured(graph)
        return list(dict.fromkeys(found))


def captured(graph: ir.Graph) -> list[ir.Value]:
    """Return the values from outside that a subgraph, and those in it, read; each once."""
    own: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    found: list[ir.Value] = []
    for node in graph:
        found += [value for value in node.inputs if value is not None and value not in own]
        for inner in subgraphs(node):
            found += [value for value in captured(inner) if value not in own]
        own.update(node.outputs)
    found += [value for value in graph.outputs if value not in own]
    return list(dict.fromkeys(found))


def name_of(node: ir.Node) -> str:
    """Return the name of a node in reports: its own, else that of its first output."""
    return node.name or next((value.name for value in node.outputs if value.name), "")
