"""The pass ``eliminate-identity``: removes nodes that compute the identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass_constant_folding.identities import identity_source
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class EliminateIdentity(Rewrite):
    """Remove nodes that compute the identity, bit for bit.

    Such as Identity, Dropout in inference, a Transpose that moves nothing, a Reshape, Expand,
    Slice or Pad that changes nothing, Concat of one tensor, ``x * 1``, ``x - 0`` and
    ``Neg(Neg(x))``. Adding 0.0 is none of these: it changes -0.0 to 0.0.

    One stays where a graph output needs its own name: its source is an input, an
    initializer or an output of the graph, or comes from an outer graph.
    """

    name: ClassVar[str] = "eliminate-identity"

    def apply(self, work: Work) -> None:
        """Bypass such nodes.

        Counters: ``identities``.
        """
        for scope in work.scopes():
            for node in scope.graph:
                source = identity_source(scope, node)
                if source is not None and scope.can_edit(node) and scope.bypass(node, source):
                    work.report.count("identities")
