"""One line on what became narrow, and what did not and why."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass import Context

_MOST = 6
"""Reasons that are named one by one."""

_QUIET = {"types", "subgraphs", "functions"}
"""Who decides on nodes that have no float32 values of their own."""


def summary(ctx: Context, name: str) -> str:
    """Return a line on the decisions of a run, with counts of the nodes that stay wide by reason.

    Args:
        ctx: has the decisions and counters of the run.
        name: of the narrow type.
    """
    narrow = wide = 0
    reasons: Counter[str] = Counter()
    for item in ctx.decisions:
        if item.by in _QUIET and not item.decision.startswith("red"):
            continue
        if item.decision.endswith("narrow"):
            narrow += 1
        elif item.decision.endswith("wide"):
            wide += 1
            reasons[_general(item.reason) or "it follows its neighbours"] += 1
    text = (
        f"{narrow} of {narrow + wide} nodes in {name}, {_number(ctx, 'casts', 'cast')}, "
        f"{_number(ctx, 'constants', 'constant')} stored narrow"
    )
    if "upgraded-to" in ctx.counters:
        text += f"; operator set upgraded to {ctx.counters['upgraded-to']}"
    if not wide:
        return text
    counted = [f"{count} ({reason})" for reason, count in reasons.most_common(_MOST)]
    rest = wide - sum(count for _, count in reasons.most_common(_MOST))
    counted += [f"{rest} for other reasons"] if rest else []
    return f"{text}; float32 stay {', '.join(counted)}"


def _general(reason: str) -> str:
    """Return a reason without the names of values, so that equal ones are counted together."""
    return re.sub(r"'[^']*'", "a value", re.sub(r" in '[^']*'$", " in a constant", reason))


def _number(ctx: Context, counter: str, word: str) -> str:
    count = ctx.counters[counter]
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
