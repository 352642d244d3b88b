"""Rewrites and refusals of one run of a pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from narrowpass import Context, Decision

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Refusal:
    """Why a node is left alone.

    Attributes:
        rule: the rule that decided.
        reason: why, as a sentence.
        counter: the decision, and the counter that it adds to; empty for ``kept``, not counted.
        measured: the value that was compared, where there was one.
        limit: what it was compared with.
    """

    rule: str
    reason: str
    counter: str = ""
    measured: int | None = None
    limit: int | None = None


@dataclass
class Report:
    """Gathers counters and decisions.

    What was left alone is an open decision: a later run may do it.
    """

    counters: Counter[str] = field(default_factory=Counter)
    done: list[Decision] = field(default_factory=list)
    left: dict[ir.Node, Refusal] = field(default_factory=dict)

    def count(self, counter: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counters[counter] += number

    def record(
        self,
        node: ir.Node,
        decision: str,
        by: str,
        reason: str = "",
        measured: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Record a rewrite of a node, and count it under the decision's name."""
        self.counters[decision] += 1
        self.left.pop(node, None)
        self.done.append(Decision(label(node), node.op_type, decision, by, reason, measured, limit))

    def record_refusal(self, node: ir.Node, refusal: Refusal) -> None:
        """Record that the pass refuses to rewrite a node of the form it matches."""
        self.left[node] = refusal

    def publish(self, ctx: Context) -> None:
        """Add counters and decisions to `ctx`."""
        ctx.counters.update({name: number for name, number in self.counters.items() if number})
        ctx.decisions.extend(self.done)
        for node, refusal in self.left.items():
            if refusal.counter:
                ctx.counters[refusal.counter] += 1
            ctx.decisions.append(
                Decision(
                    label(node),
                    node.op_type,
                    refusal.counter or "kept",
                    refusal.rule,
                    refusal.reason,
                    refusal.measured,
                    refusal.limit,
                    open=True,
                )
            )


def label(node: ir.Node) -> str:
    """Return the node's name, or its first output's where it has none."""
    if node.name:
        return node.name
    return next((value.name for value in node.outputs if value.name), "")
