"""The figures of a form: its latency, and its error."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_analysis import metrics
from runners.loaders import Feeds
from runners.turns import Entrant, Timing, in_turns


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


def beside_onnxruntime(path: str, feeds: Feeds, threads: int, rounds: int) -> list[str]:
    """Time a small model in both runtimes, in turns, and return cells of a table.

    They are the microseconds of narrowpass and of onnxruntime, the ratio, and the largest
    difference of an element.

    Raises:
        SystemExit: one of them does not run it.
    """
    entrants = [Entrant(name, name, path) for name in ("narrowpass", "onnxruntime")]
    found = in_turns(entrants, [feeds], threads, rounds, 0.2)
    ours, theirs = (found[entrant.name] for entrant in entrants)
    for timing in (ours, theirs):
        if timing.failure:
            raise SystemExit(timing.failure)
    pairs = zip(ours.outputs[0], theirs.outputs[0], strict=True)
    error = max(float(np.abs(one - other).max()) for one, other in pairs)
    return [
        f"{ours.latency * 1e6:.1f}",
        f"{theirs.latency * 1e6:.1f}",
        f"{theirs.latency / ours.latency:.2f}",
        f"{error:.1e}",
    ]
