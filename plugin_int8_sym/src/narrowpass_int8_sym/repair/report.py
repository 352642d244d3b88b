"""What the pass tells: a decision for each node, and one warning for each that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Decision
from narrowpass.subgraphs import Opsets

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass_int8_sym.limits import Violation


class Report:
    """Tells a context what becomes of nodes.

    Args:
        ctx: of the pass.
        opsets: of the model.
    """

    def __init__(self, ctx: Context, opsets: Opsets) -> None:
        self._ctx, self._opsets = ctx, opsets
        self._told: set[tuple[ir.Node, str]] = set()

    def repaired(self, node: ir.Node, how: str) -> None:
        """Tell that a node was rewritten to the same in another form."""
        self._ctx.counters["repaired"] += 1
        self._decide(node, "repaired", "repair-quantized", how)

    def int8(self, node: ir.Node, note: str) -> None:
        """Tell that an operator keeps all limits."""
        self._ctx.counters["int8"] += 1
        self._decide(node, "int8", "constraints", note)

    def floating(self, node: ir.Node, reason: str) -> None:
        """Tell that an operator computes with floats, as the model has it."""
        self._decide(node, "float", "rule", reason)

    def broken(self, node: ir.Node, violation: Violation) -> None:
        """Tell that an operator is left in float by a limit, once each."""
        self._left(node, "constraints", str(violation), violation.measured, violation.limit)

    def left(
        self,
        node: ir.Node,
        reason: str,
        measured: float | None = None,
        limit: float | None = None,
    ) -> None:
        """Tell that a node is left as it is, and why."""
        self._left(node, "rule", reason, measured, limit)

    def _left(
        self, node: ir.Node, by: str, reason: str, measured: float | None, limit: float | None
    ) -> None:
        if (node, reason) in self._told:
            return
        self._told.add((node, reason))
        self._ctx.counters["left"] += 1
        self._decide(node, "float", by, reason, measured, limit)
        self._ctx.log.warning(
            "repair-quantized: %s %r stays float: %s",
            node.op_type,
            self._opsets.label(node),
            reason,
        )

    def _decide(
        self,
        node: ir.Node,
        what: str,
        by: str,
        reason: str,
        measured: float | None = None,
        limit: float | None = None,
    ) -> None:
        label = self._opsets.label(node)
        self._ctx.decisions.append(Decision(label, node.op_type, what, by, reason, measured, limit))
