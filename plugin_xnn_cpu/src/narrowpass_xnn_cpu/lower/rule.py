"""Rules: how the operations of one kind are lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op

Check = Callable[[Op, Facts], str | None]
"""Returns the reason why an operation cannot be lowered; None where it can."""


@dataclass(frozen=True)
class Rule:
    """How an operator is lowered.

    Attributes:
        kind: the operator, or the lower-case name of a fused pattern.
        check: returns the reason why an operation of this kind cannot be lowered.
        lower: emits the operation to a builder.
        clamps: whether `Op.limits` are supported.
        ends: returns whether an operation that can be lowered takes an epilogue: `Op.function` and
            `Op.residual`; None where none of this kind does.
        domain: of the operator; empty for ONNX's own and for patterns.
    """

    kind: str
    check: Check
    lower: Callable[[Op, Builder], None]
    clamps: bool = False
    ends: Callable[[Op, Facts], bool] | None = None
    domain: str = ""


def rules(
    *kinds: str,
    check: Check,
    lower: Callable[[Op, Builder], None],
    clamps: bool = False,
    ends: Callable[[Op, Facts], bool] | None = None,
    domain: str = "",
) -> tuple[Rule, ...]:
    """Return the rules of several kinds that are lowered alike; see `Rule`."""
    return tuple(Rule(kind, check, lower, clamps, ends, domain) for kind in kinds)
