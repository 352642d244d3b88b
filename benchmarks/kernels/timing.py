"""Runs operators of the native backend alone and in turns: what benchmarks of kernels share."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]
_OTHERS = 64 << 20
"""Bytes that no cache of a core has room for."""


def parser(doc: str, rounds: int) -> argparse.ArgumentParser:
    """Return the parser of a script with this docstring; `rounds` is the default of its option."""
    built = argparse.ArgumentParser(description=doc.splitlines()[0])
    built.add_argument("--threads", type=int, default=1)
    built.add_argument("--rounds", type=int, default=rounds)
    return built


def alone(operator: Any, params: Any, x: Array, result: Array, pool: ThreadPool) -> Run:
    """Return a function that runs a sized operator on x, into `result`."""
    tape = Tape([Entry(operator.call, (0,), 1, operator, params, True, "operator")], 2)
    given, scratch = aligned(x.nbytes), aligned(max(1, operator.workspace))
    given[: x.nbytes].view(x.dtype)[...] = x.reshape(-1)
    tape.bind_workspace(scratch, 0)
    tape.bind(0, given)
    tape.bind(1, result)
    # The tape has addresses only: what lies there must live as long.
    return functools.partial(_run, tape, pool, (given, scratch, result))


def _run(tape: Tape, pool: ThreadPool, _kept: tuple[Array, ...]) -> None:
    tape.run(pool)


def in_turns(
    runs: Mapping[str, Run], rounds: int, repeats: int, pool: ThreadPool, *, cold: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of each by name, one for each round: by processor time on one thread.

    Args:
        runs: what is timed.
        rounds: how often each has its turn.
        repeats: runs of a turn.
        pool: the threads.
        cold: whether other memory is written before each turn, so that weights leave the caches.
    """
    others = np.ones(_OTHERS // 4 if cold else 0, np.float32)
    clock = time.process_time if pool.threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            others += 1
            start = clock()
            for _ in range(repeats):
                run()
            seconds[name].append((clock() - start) / repeats)
    return seconds
