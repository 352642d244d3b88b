"""The pass ``dead-code``: removes nodes, initializers and functions that nothing uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from narrowpass import Pass, PassResult
from narrowpass_constant_folding.graphs.scopes import (
    inner_nodes,
    is_used,
    remove_nodes,
    roots,
)
from narrowpass_ir.subgraphs import nested_graphs, subgraphs

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class DeadCode(Pass):
    """Remove what nothing uses: nodes, initializers, model-local functions.

    Nodes of domains that have no schema stay: what they do besides their outputs is unknown.
    Graph inputs stay, with the defaults that they may have.
    """

    name: ClassVar[str] = "dead-code"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Clean up `model` in place.

        Counters: ``dead-nodes``, ``dead-initializers``, ``dead-functions``.
        """
        purity = _Purity(model)
        removed = {
            "dead-nodes": sum(_remove_nodes(root.graph, purity) for root in roots(model)),
            "dead-initializers": sum(
                _remove_initializers(graph)
                for root in roots(model)
                for graph in nested_graphs(root.graph)
            ),
            "dead-functions": _remove_functions(model),
        }
        ctx.counters.update({name: number for name, number in removed.items() if number})
        return PassResult(model, any(removed.values()))


def _remove_nodes(graph: ir.Graph, purity: _Purity) -> int:
    """Remove unused nodes of `graph` and of graphs within it, users before producers."""
    removed = 0
    dead: list[ir.Node] = []
    for node in reversed(graph):
        if _unused(node) and purity.is_pure(node):
            # Detached at once, so that what fed only this node is seen to be dead.
            for inner in (node, *inner_nodes(node)):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
            dead.append(node)
            continue
        for subgraph in subgraphs(node):
            removed += _remove_nodes(subgraph, purity)
    if dead:
        remove_nodes(graph, dead)
    return removed + len(dead)


def _unused(node: ir.Node) -> bool:
    return not any(is_used(value) for value in node.outputs)


class _Purity:
    """Nodes without side effects, through functions and subgraphs."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._known: dict[ir.OperatorIdentifier, bool] = {}

    def is_pure(self, node: ir.Node) -> bool:
        return all(self._node(inner) for inner in (node, *inner_nodes(node)))

    def _node(self, node: ir.Node) -> bool:
        key = node.op_identifier()
        if key not in self._functions:
            return onnx.defs.has(node.op_type, node.domain)
        if key not in self._known:
            self._known[key] = False  # recursion does not terminate
            self._known[key] = all(self.is_pure(inner) for inner in self._functions[key])
        return self._known[key]


def _remove_initializers(graph: ir.Graph) -> int:
    dead = [
        name
        for name, value in graph.initializers.items()
        if not value.is_graph_input() and not is_used(value)
    ]
    for name in dead:
        del graph.initializers[name]
    return len(dead)


def _remove_functions(model: ir.Model) -> int:
    """Remove functions that no call reaches from the model's graph; return their number."""
    before = len(model.functions)
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    return before - len(model.functions)
