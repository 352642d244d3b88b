"""What the pass did and what it left alone, gathered over its rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from narrowpass import Context, Decision

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Refusal:
    """Why a constant expression is left alone.

    Attributes:
        rule: the rule that decided.
        reason: why, as a sentence.
        counter: the counter that it adds to; empty for none.
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

    What was done adds up over the rounds. What was left alone may be folded in a later round,
    so that only the last round's word counts.
    """

    counters: Counter[str] = field(default_factory=Counter)
    done: list[Decision] = field(default_factory=list)
    left: dict[ir.Node, Refusal] = field(default_factory=dict)

    def begin_round(self) -> None:
        """Forget what earlier rounds left alone."""
        self.left.clear()

    def count(self, counter: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counters[counter] += number

    def folded(self, node: ir.Node, by: str, measured: int, limit: int) -> None:
        """Note a folded node with the bytes of its results and the limit that they kept."""
        self.counters["folded"] += 1
        self.left.pop(node, None)
        self.done.append(
            Decision(label(node), node.op_type, "folded", by, measured=measured, limit=limit)
        )

    def leave(self, node: ir.Node, refusal: Refusal) -> None:
        """Note a constant expression that is left alone."""
        self.left[node] = refusal

    def publish(self, ctx: Context) -> None:
        """Hand everything to `ctx`."""
        for refusal in self.left.values():
            if refusal.counter:
                self.counters[refusal.counter] += 1
        ctx.counters.update({name: number for name, number in self.counters.items() if number})
        ctx.decisions.extend(self.done)
        for node, refusal in self.left.items():
            ctx.decisions.append(
                Decision(
                    label(node),
                    node.op_type,
                    "kept",
                    refusal.rule,
                    refusal.reason,
                    refusal.measured,
                    refusal.limit,
                )
            )


def label(node: ir.Node) -> str:
    """Give the node's name, or its first output's where it has none."""
    if node.name:
        return node.name
    return next((value.name for value in node.outputs if value.name), "")
