"""What runs models for the benchmarks: each runtime in a process of its own, asked in turn."""

from __future__ import annotations

from runners.judging import judge
from runners.loaders import RUNTIMES, Array, Feeds, Run, installed, load
from runners.turns import CLOCKS, Entrant, Failure, Timing, Worker, cores, in_turns

__all__ = [
    "CLOCKS",
    "RUNTIMES",
    "Array",
    "Entrant",
    "Failure",
    "Feeds",
    "Run",
    "Timing",
    "Worker",
    "cores",
    "in_turns",
    "installed",
    "judge",
    "load",
]
