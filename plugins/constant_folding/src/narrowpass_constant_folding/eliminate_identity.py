"""The pass ``eliminate-identity``: removes nodes that give back what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass_constant_folding.graphs.matching import is_op
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class EliminateIdentity(Rewrite):
    """Remove nodes that give back what they are given.

    One stays where it gives a graph output a name of its own: its source is an input, an
    initializer or an output of the graph, or comes from an outer graph.
    """

    name: ClassVar[str] = "eliminate-identity"

    def apply(self, work: Work) -> None:
        """Bypass such nodes.

        Counters: ``identities``.
        """
        for scope in work.scopes():
            for node in scope.graph:
                source = _source(node)
                if source is not None and scope.free(node) and scope.bypass(node, source):
                    work.report.count("identities")


def _source(node: ir.Node) -> ir.Value | None:
    """Give the value that the node's first output always equals."""
    if is_op(node, "Identity") and len(node.inputs) == 1 and len(node.outputs) == 1:
        return node.inputs[0]
    return None
