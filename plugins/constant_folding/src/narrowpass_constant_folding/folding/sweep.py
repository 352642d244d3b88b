"""Folds all constant expressions of a model in one sweep, in time linear in its size.

Constant folding as a worklist over def-use chains, without branches: Wegman and Zadeck, "Constant
Propagation with Conditional Branches", TOPLAS 13(2), 1991. `inline-if` handles branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import onnx_ir as ir

from narrowpass_constant_folding.folding.attempt import Folded, Folder, NotFolded, Values
from narrowpass_constant_folding.graphs.constants import (
    Store,
    initializer_graphs,
    is_constant,
    tensor_of,
)
from narrowpass_constant_folding.graphs.scopes import (
    Root,
    inner_nodes,
    remove_nodes,
    roots,
)
from narrowpass_constant_folding.report import Refusal, Report
from narrowpass_constant_folding.shapes.derived import declared_output
from narrowpass_constant_folding.shapes.types import Type, merge
from narrowpass_ir.subgraphs import subgraphs


def fold_constants(
    model: ir.Model, folder: Folder, kept: Collection[ir.Node], report: Report
) -> bool:
    """Fold what can be folded now; return whether anything was.

    Args:
        model: changed in place.
        folder: evaluates nodes; pass the same one to a later sweep over the same model.
        kept: nodes to leave alone.
        report: records what was folded, and refusals.
    """
    return _Sweep(model, folder, kept, report).run()


class _Sweep:
    """Visits all nodes in order, and again those that a later node gave another chance."""

    def __init__(
        self, model: ir.Model, folder: Folder, kept: Collection[ir.Node], report: Report
    ) -> None:
        self._model = model
        self._folder = folder
        self._kept = kept
        self._report = report
        self._store = Store(initializer_graphs(model))
        self._values = Values(model)
        self._gone: dict[ir.Graph, list[ir.Node]] = {}
        self._removed: set[ir.Node] = set()
        self._too_large: dict[ir.Value, list[ir.Node]] = {}
        self._again: deque[ir.Node] = deque()

    def run(self) -> bool:
        for root in roots(self._model):
            self._visit(root.graph, root)
            while self._again:
                self._revisit(self._again.popleft(), root)
        for graph, nodes in self._gone.items():
            remove_nodes(graph, nodes)
        return bool(self._gone)

    def _visit(self, graph: ir.Graph, root: Root) -> None:
        for node in graph:
            if is_constant(node):
                self._constant_to_initializer(graph, node)
            elif not self._fold(graph, node, root):
                for subgraph in subgraphs(node):
                    self._visit(subgraph, root)

    def _revisit(self, node: ir.Node, root: Root) -> None:
        graph = node.graph
        if node in self._removed or graph is None:
            return
        users = [use.node for value in node.outputs for use in value.uses()]
        if self._fold(graph, node, root):
            self._again.extend(users)

    def _constant_to_initializer(self, graph: ir.Graph, node: ir.Node) -> None:
        """Turn a Constant node into an initializer, where the graph can hold one."""
        if node in self._kept or not self._store.holds_initializers(graph):
            return
        tensor = tensor_of(node)
        if tensor is None or self._contradicts({node.outputs[0]: tensor}):
            return
        self._replace(graph, node, {node.outputs[0]: tensor})
        self._report.count("constants")

    def _fold(self, graph: ir.Graph, node: ir.Node, root: Root) -> bool:
        outcome = self._folder.attempt(node, root.opsets, self._values)
        if isinstance(outcome, NotFolded):
            self._report.record_refusal(node, outcome.refusal)
            if outcome.refusal.counter == "too-large":
                for value in outcome.read:
                    self._too_large.setdefault(value, []).append(node)
            for value, tensor in outcome.held.items():
                self._values.mark_constant(value, tensor)
        if not isinstance(outcome, Folded):
            return False
        contradiction = self._contradicts(outcome.tensors)
        if contradiction:
            self._report.record_refusal(node, Refusal("declared", contradiction, "contradictions"))
            return False
        self._replace(graph, node, outcome.tensors)
        self._report.record(
            node, "folded", outcome.by, measured=outcome.measured, limit=outcome.limit
        )
        self._values.remove_uses(outcome.read)
        for value in outcome.read:
            self._revisit_only_reader(value)
        return True

    def _contradicts(self, tensors: Mapping[ir.Value, ir.TensorProtocol]) -> str:
        """Return why tensors contradict the declared outputs of the model; empty if they do not.

        An initializer of another shape than is declared of it is no valid model.
        """
        for value, tensor in tensors.items():
            if value.is_graph_output():
                actual = Type(tensor.dtype, tuple(tensor.shape.numpy()))
                found = merge(declared_output(self._model, value), actual).contradiction
                if found:
                    return f"{value.name!r}: {found}"
        return ""

    def _replace(
        self, graph: ir.Graph, node: ir.Node, tensors: Mapping[ir.Value, ir.TensorProtocol]
    ) -> None:
        for value, tensor in tensors.items():
            self._values.move(value, self._store.replace(node, value, tensor))
        self._gone.setdefault(graph, []).append(node)
        self._removed.update((node, *inner_nodes(node)))

    def _revisit_only_reader(self, value: ir.Value) -> None:
        """Look again at a node that was too large, if it has become the value's only reader."""
        nodes = self._too_large.get(value, ())
        if len(nodes) == 1 and nodes[0] not in self._removed:
            del self._too_large[value]
            self._again.append(nodes[0])
