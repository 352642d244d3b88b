"""Lowering rules: the check and the lowering function of one kind of operation."""

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
    """A lowering rule.

    Attributes:
        kind: the operator, or the lower-case name of a fused pattern.
        check: returns the reason why an operation of this kind cannot be lowered.
        lower: emits the operation to a builder.
        fuses_clamp: whether `Op.limits` are supported.
        fuses_epilogue: returns whether the kernel of an operation supports an epilogue:
            `Op.function` and `Op.residual`; None where no kernel of this kind does.
        domain: of the operator; empty for ONNX's own and for patterns.
    """

    kind: str
    check: Check
    lower: Callable[[Op, Builder], None]
    fuses_clamp: bool = False
    fuses_epilogue: Callable[[Op, Facts], bool] | None = None
    domain: str = ""


def rules(
    *kinds: str,
    check: Check,
    lower: Callable[[Op, Builder], None],
    fuses_clamp: bool = False,
    fuses_epilogue: Callable[[Op, Facts], bool] | None = None,
    domain: str = "",
) -> tuple[Rule, ...]:
    """Return one rule for each kind, with the same check and lowering; see `Rule`."""
    return tuple(Rule(kind, check, lower, fuses_clamp, fuses_epilogue, domain) for kind in kinds)
