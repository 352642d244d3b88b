"""The nodes of a model that a program would not run in a partition, before anything is packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir

from narrowpass_planning.graph.constants import derive_constants
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.partitioner.assign import assign
from narrowpass_planning.partitioner.assignment import Target
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.program.models import inferred


def fallbacks(lowering: Lowering[Any], model: ir.Model) -> dict[str, str]:
    """Return why a program would not run nodes in a partition, by the names of the nodes.

    Nodes of numpy kernels count too, those with subgraphs, and those that the reference evaluator
    runs. Nodes that follow from shapes, or are packed with weights, do not. No weight is packed.

    Args:
        lowering: of the backend.
        model: each node has a name of its own; not changed.

    Raises:
        BackendError: an operator that nothing computes.
    """
    given = {node.name or "" for node in model.graph}
    prepared = inferred(model, lowering)
    graph = prepared.graph
    facts = Facts(graph)

    def version(node: ir.Node) -> int:
        return node.version or prepared.opset_imports.get(node.domain, 1)

    derive_constants(graph, facts, version)
    found: dict[str, str] = {}
    operations = lowering.operations(graph, facts, prepared, version)
    for entry in assign(operations, facts, lowering.reason):
        if entry.target is Target.HOST:
            nodes = (*entry.op.superseded, *entry.op.nodes)
            found.update({node.name or "": entry.reason for node in nodes})
    inner = {name: reason for name, reason in found.items() if name not in given}
    if inner:
        # Parts of operators that were expanded: which of them is not recorded.
        left = {node.name for node in graph}
        reason = "; ".join(dict.fromkeys(inner.values()))
        found.update({name: reason for name in given if name not in left})
    return {name: reason for name, reason in found.items() if name in given}


@runtime_checkable
class ListsFallbacks(Protocol):
    """A backend that says before it compiles which nodes it would not run itself."""

    def fallbacks(self, model: ir.Model) -> Mapping[str, str]:
        """Return such nodes, by name, with the reasons; see `fallbacks`."""
