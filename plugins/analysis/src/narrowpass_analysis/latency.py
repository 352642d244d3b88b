"""Measured times of runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WARM_UP_RUNS = 3
_BUDGET_SECONDS = 3.0
_FEWEST_RUNS = 5
_MOST_RUNS = 1000


@dataclass(frozen=True)
class Latency:
    """Times of single runs, in seconds."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """The time that half of the runs stay below."""
        return self.percentile(50)

    def percentile(self, share: float) -> float:
        """Return the time that `share` percent of the runs stay below."""
        return float(np.percentile(self.times, share))

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds, and runs per second."""
        return {
            "runs": len(self.times),
            "median": self.median,
            "p10": self.percentile(10),
            "p90": self.percentile(90),
            "min": min(self.times),
            "runs_per_second": 1.0 / self.median if self.median else 0.0,
        }


def measure(
    runs: Sequence[Callable[[], object]], count: int | None, *, warm_up: int = WARM_UP_RUNS
) -> list[Latency]:
    """Run each function several times and time it.

    They take turns, so that whatever else the machine does meets all of them.

    Args:
        runs: what to run.
        count: how often; None for as often as fits into three seconds, at least 5 times.
        warm_up: runs of each that are not counted.
    """
    for run in runs:
        for _ in range(warm_up):
            run()
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while _continues(len(times[0]), count, time.perf_counter() - start):
        for run, row in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            row.append(time.perf_counter() - begin)
    return [Latency(tuple(row)) for row in times]


def _continues(done: int, count: int | None, seconds: float) -> bool:
    if count is not None:
        return done < count
    return done < _FEWEST_RUNS or (done < _MOST_RUNS and seconds < _BUDGET_SECONDS)
