"""The figures of a form: its latency, and its error."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_analysis import metrics
from runners.turns import Timing


def judge(timing: Timing, right: Timing | None, outputs: int | None = None) -> dict[str, Any]:
    """Return the figures of one form; of accuracy those of the worst output and feeds.

    Args:
        timing: of the form.
        right: of the one whose outputs are right, if there is one.
        outputs: how many of them are looked at, the first ones; all if None.
    """
    if timing.failure:
        return {"failure": timing.failure}
    row: dict[str, Any] = {
        "latency": timing.latency,
        "spread": timing.spread,
        "load": timing.load,
        "memory": timing.memory,
        "rounds": timing.rounds,
    }
    if right is None or right.failure:
        return row
    pairs = [
        pair
        for ours, theirs in zip(timing.outputs, right.outputs, strict=True)
        for pair in list(zip(ours, theirs, strict=True))[:outputs]
    ]
    differences = [metrics.difference(ours, theirs) for ours, theirs in pairs]
    row["cosine"] = min(found.cosine for found in differences)
    row["sqnr"] = min(found.sqnr for found in differences)
    row["relative"] = max(
        float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs
    )
    return row
