"""Queries of passes: which nodes a backend supports, and which should stay float32."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import onnx_ir as ir

from narrowpass import Accept, Color, OpClassifier, Reject
from narrowpass_planning import partitioner
from narrowpass_planning.graph.constants import derive_constants
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host import kernels
from narrowpass_planning.host.control_flow import can_run
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.program.models import inferred

if TYPE_CHECKING:
    from narrowpass.framework.classify import Target


def supports(lowering: Lowering[Any], node: ir.Node) -> Accept | Reject:
    """Return whether a program runs a node, in a partition or by numpy; see `Backend.supports`.

    A node is accepted alone, by the types and shapes that its values have.
    """
    if node.graph is None:
        return Reject("the node is in no graph, so that nothing is known of its inputs")
    version = node.version or node.graph.opset_imports.get(node.domain, 1)
    op, facts = lowering.operation(node, version), Facts(node.graph)
    reason = lowering.reason(op, facts)
    if reason is None or can_run(op) or kernels.kernel_for(op, facts) is not None:
        return Accept()
    return Reject(reason)


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
    for entry in partitioner.assign(operations, facts, lowering.reason):
        if entry.target is partitioner.Target.HOST:
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


class NativeClassifier(OpClassifier, abc.ABC):
    """Keeps nodes without a native kernel in float32, where numpy is faster than in float16."""

    def __init__(self) -> None:
        self._reasons: dict[ir.Graph, dict[ir.Node, str]] = {}

    @abc.abstractmethod
    def lowering(self) -> Lowering[Any]:
        """Return the lowering of the backend."""

    def for_target(self, target: Target | None, dtype: str) -> OpClassifier:
        """Return a new classifier, without cached reasons."""
        return type(self)()

    def color(self, node: ir.Node) -> Color | None:
        """Return red (float32) for a node without a native kernel; None for others."""
        return Color.RED if self.reason(node) else None

    def reason(self, node: ir.Node) -> str:
        """Return why there is no native kernel; empty where there is."""
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            return ""
        if graph not in self._reasons:
            self._reasons[graph] = _reasons(graph, self.lowering())
        return self._reasons[graph].get(node, "")


def _reasons(graph: ir.Graph, lowering: Lowering[Any]) -> dict[ir.Node, str]:
    """Return the reasons of nodes that have no native kernel, alone or in a pattern."""
    facts = Facts(graph)

    def version(node: ir.Node) -> int:
        return node.version or graph.opset_imports.get(node.domain, 1)

    found: dict[ir.Node, str] = {}
    model = ir.Model(graph, ir_version=10)  # functions are not entered
    for op in lowering.operations(graph, facts, model, version):
        if _has_subgraphs(op):
            continue  # the nodes of its subgraphs are classified
        reason = lowering.reason(op, facts)
        if reason:
            found.update(dict.fromkeys(op.nodes, reason))
    return found


def _has_subgraphs(op: Op) -> bool:
    attributes = op.nodes[0].attributes.values()
    return any(attribute.type == ir.AttributeType.GRAPH for attribute in attributes)
