"""The pass ``inline-if``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import small_array
from narrowpass_constant_folding.graphs.matching import is_op
from narrowpass_constant_folding.rewrite import Rewrite
from narrowpass_ir.subgraphs import subgraphs

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class InlineIf(Rewrite):
    """Replace an If whose condition is constant by its branch.

    Values and nodes of the branch get new names where theirs are taken outside.
    """

    name: ClassVar[str] = "inline-if"

    def apply(self, work: Work) -> None:
        """Inline If.

        Counters: ``inlined``.
        """
        for scope in work.scopes():
            waiting = list(scope.graph)
            while waiting:
                node = waiting.pop()
                branch = _taken(scope, node) if is_op(node, "If") and scope.can_edit(node) else None
                if branch is not None:
                    waiting.extend(branch)  # there may be one within it
                    _inline(scope, node, branch)
                    work.report.record(node, "inlined", "inline-if")


def _taken(scope: Scope, node: ir.Node) -> ir.Graph | None:
    condition = small_array(scope.constant(node.inputs[0]))
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if condition.all() else "else_branch"
    return node.attributes[name].as_graph()


def _inline(scope: Scope, node: ir.Node, branch: ir.Graph) -> None:
    outputs = list(branch.outputs)
    nodes = list(branch)
    branch.outputs.clear()
    constants = _move_initializers(scope, node, branch)
    _rename(scope, nodes)
    branch.remove(nodes)
    for inner in nodes:
        scope.graph.insert_before(node, inner)
    scope.names.release_node(node.name)
    for old, value in zip(node.outputs, outputs, strict=True):
        if not old.name:
            continue
        # An Identity keeps the result's name; where none is needed, another pass drops it.
        copy = scope.successor(old)
        source = constants.get(value, value)
        name = scope.names.unique_node(node.name)
        scope.graph.insert_before(
            node, ir.Node("", "Identity", [source], outputs=[copy], name=name)
        )
        scope.pass_on(old, copy)
    scope.remove(node)


def _move_initializers(scope: Scope, node: ir.Node, branch: ir.Graph) -> dict[ir.Value, ir.Value]:
    """Move the branch's constants to the outer graph; return the new ones by the old ones."""
    moved: dict[ir.Value, ir.Value] = {}
    for value in list(branch.initializers.values()):
        tensor, name = value.const_value, value.name
        if tensor is None or name is None:
            raise ValueError(f"an initializer of the branch of {node.name!r} has no name or data")
        scope.names.release(name)
        del branch.initializers[name]
        moved[value] = scope.add_constant(name, tensor, node)
        value.replace_all_uses_with(moved[value])
    return moved


def _rename(scope: Scope, nodes: list[ir.Node]) -> None:
    """Rename nodes, their outputs and their subgraphs, so that no name occurs outside."""
    for node in nodes:
        node.name = scope.names.hoisted_node_name(node.name)
        for value in node.outputs:
            value.name = scope.names.hoisted_name(value.name) if value.name else value.name
        for graph in subgraphs(node):
            for value in graph.inputs:
                value.name = scope.names.hoisted_name(value.name)
            for value in list(graph.initializers.values()):
                del graph.initializers[value.name or ""]
                value.name = scope.names.hoisted_name(value.name)
                graph.initializers.add(value)
            _rename(scope, list(graph))
