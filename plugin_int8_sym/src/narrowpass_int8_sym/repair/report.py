"""Reports a decision for each node, and one warning about all that stay float."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Decision
from narrowpass_ir.subgraphs import Opsets

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.runtime.quantization import Violation


_SHOWN = 4
"""The largest number of reasons in the warning."""

_FIXES = (
    (
        "integer of the weight",
        "Build with repair-quantized{clamp-weights=true}, or quantize to [-127, 127]",
    ),
    ("zero point of the weight", "Quantize weights symmetrically, with int8 and the zero point 0"),
    ("input * weight / output", "Calibrate anew: a scale of an output is out of proportion"),
    ("smallest scale", "Calibrate on data for which no tensor is all zeros"),
    ("largest accumulator", "Quantize with a smaller bias, or leave the operator in float"),
)
"""Advice, by the beginning of a reason."""


def _fix(reason: str) -> str:
    return next((fix for start, fix in _FIXES if reason.startswith(start)), "")


def _named(nodes: list[str]) -> str:
    """Return the first node of a reason, and the number of others."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


class Report:
    """Adds decisions about nodes to a context.

    Args:
        ctx: of the pass.
        opsets: of the model.
    """

    def __init__(self, ctx: Context, opsets: Opsets) -> None:
        self._ctx, self._opsets = ctx, opsets
        self._label: set[tuple[ir.Node, str]] = set()
        self._causes: dict[str, list[str]] = {}

    def repaired(self, node: ir.Node, how: str) -> None:
        """Report that a node was rewritten to an equivalent form."""
        self._ctx.counters["repaired"] += 1
        self._decide(node, "repaired", "repair-quantized", how)

    def int8(self, node: ir.Node, note: str) -> None:
        """Report that an operator is int8 and within all limits."""
        self._ctx.counters["int8"] += 1
        self._decide(node, "int8", "constraints", note)

    def floating(self, node: ir.Node, reason: str) -> None:
        """Report that an operator is float in the model."""
        self._decide(node, "float", "rule", reason)

    def broken(self, node: ir.Node, violation: Violation) -> None:
        """Report that an operator stays float because it breaks a limit, once for each limit."""
        self._left(node, "constraints", str(violation), violation.measured, violation.limit)

    def left(
        self,
        node: ir.Node,
        reason: str,
        measured: float | None = None,
        limit: float | None = None,
    ) -> None:
        """Report that a node is not repaired, and why."""
        self._left(node, "rule", reason, measured, limit)

    def _left(
        self, node: ir.Node, by: str, reason: str, measured: float | None, limit: float | None
    ) -> None:
        if (node, reason) in self._label:
            return
        self._label.add((node, reason))
        self._ctx.counters["left"] += 1
        self._decide(node, "float", by, reason, measured, limit)
        self._causes.setdefault(reason, []).append(f"{node.op_type} {self._opsets.label(node)!r}")

    def warn(self) -> None:
        """Log one warning with the reasons why operators stay float, the most frequent first."""
        if not self._causes:
            return
        causes = sorted(self._causes.items(), key=lambda item: -len(item[1]))
        shown = [f"{_named(nodes)}: {reason}" for reason, nodes in causes[:_SHOWN]]
        if len(causes) > _SHOWN:
            shown.append(f"and {len(causes) - _SHOWN} reasons more")
        fixes = dict.fromkeys(fix for reason, _ in causes if (fix := _fix(reason)))
        advice = "".join(f" {fix}." for fix in fixes)
        self._ctx.observer.log.warning(
            "repair-quantized: some operators are not int8 on the target, and stay float. %s.%s "
            "The report has all of them",
            "; ".join(shown),
            advice,
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
