"""Queries of passes: which nodes a backend supports, and which should stay float32."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass import Accept, Color, OpClassifier, Reject
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host import kernels
from narrowpass_planning.host.control_flow import can_run
from narrowpass_planning.program.lowering import Lowering

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
