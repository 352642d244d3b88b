"""Times models in turns, each in a process of its own."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import numpy as np

from runners.apart import first_line
from runners.loaders import Array, Feeds, Run, load, module
from runners.memory import resident

PAUSE = 0.05
# What a run is timed with: what a user waits for, or what all threads compute together. The latter
# leaves out what other programs do meanwhile; with one thread it is the same on an idle machine.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Failure(Exception):  # noqa: N818  # what a table says of a tool, not an error of ours
    """A runtime could not load or run a model; the text is its first line."""


@dataclass(frozen=True)
class Entrant:
    """One model in one runtime.

    Attributes:
        name: what the tables call it.
        runtime: one of `RUNTIMES`.
        path: the file that the runtime loads.
    """

    name: str
    runtime: str
    path: str


@dataclass
class Timing:
    """What was measured of one entrant.

    Attributes:
        load: seconds from the file to the first result.
        outputs: for each of the feeds, what the model gave.
        memory: bytes of the resident set after the runs, less those before the model.
        rounds: the median of each round, in seconds.
        failure: why there are no figures; empty if there are.
    """

    load: float = 0.0
    outputs: list[list[Array]] = field(default_factory=list)
    memory: int = 0
    rounds: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def latency(self) -> float:
        """Return the median over rounds, in seconds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Return half the interquartile range of the rounds, as a share of the median."""
        low, high = np.percentile(self.rounds, [25, 75])
        return float(high - low) / 2 / self.latency


class Worker:
    """A process with one runtime, which has one model at a time."""

    def __init__(self, runtime: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(runtime, threads, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the process."""
        self._pipe.close()
        self._process.join()

    def load(self, path: str, feeds: Sequence[Feeds]) -> tuple[float, list[list[Array]]]:
        """Load a model in place of the one before, and run it on each of the feeds.

        Returns:
            the seconds to the first result, and the outputs for each of the feeds.

        Raises:
            Failure: the runtime does not take the model.
        """
        found: tuple[float, list[list[Array]]] = self._ask(("load", path, feeds))
        return found

    def time(self, seconds: float, clock: str = "wall") -> tuple[float, int]:
        """Run the model on the first feeds for some seconds, after one run to warm up.

        Args:
            seconds: how long, of the wall's clock.
            clock: one of `CLOCKS`, to time each run with.

        Returns:
            the median of the runs in seconds, and the bytes that the model holds.

        Raises:
            Failure: a run failed.
        """
        found: tuple[float, int] = self._ask(("time", seconds, clock))
        return found

    def _ask(self, request: Any) -> Any:
        try:
            self._pipe.send(request)
            answer = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            raise Failure(f"its process ended with {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise Failure(answer)
        return answer


def in_turns(
    entrants: Sequence[Entrant],
    feeds: Sequence[Feeds],
    threads: int,
    rounds: int,
    seconds: float,
    clock: str = "wall",
) -> Mapping[str, Timing]:
    """Load all models, each in a process, then time some runs of each in every round.

    Args:
        entrants: what is measured, in the order of the turns.
        feeds: what each runs on; the first is what is timed.
        threads: how many each may use.
        rounds: how often each has its turn.
        seconds: how long a turn is. A pause before it lets the threads of the one before fall
            asleep.
        clock: one of `CLOCKS`.

    Returns:
        what was measured, by the names of the entrants.
    """
    timings = {entrant.name: Timing() for entrant in entrants}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for entrant in entrants:
            timing = timings[entrant.name]
            worker = stack.enter_context(Worker(entrant.runtime, threads))
            workers[entrant.name] = worker
            try:
                timing.load, timing.outputs = worker.load(entrant.path, feeds)
            except Failure as failure:
                timing.failure = str(failure)
        for _ in range(rounds):
            for name, timing in timings.items():
                if timing.failure:
                    continue
                time.sleep(PAUSE)
                try:
                    latency, timing.memory = workers[name].time(seconds, clock)
                except Failure as failure:
                    timing.failure = str(failure)
                else:
                    timing.rounds.append(latency)
    return timings


def cores(text: str) -> int:
    """Return a number of threads for a text: a number, or ``all`` of this process's cores."""
    return len(os.sched_getaffinity(0)) if text == "all" else int(text)


def _serve(runtime: str, threads: int, pipe: Connection) -> None:
    importlib.import_module(module(runtime))
    before = resident()
    run: Run | None = None
    feeds: Sequence[Feeds] = []
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            if request[0] == "load":
                run = None  # frees the model before
                _, path, feeds = request
                start = time.perf_counter()
                run = load(runtime, path, threads)
                outputs = [_copied(run(feeds[0]))]
                seconds = time.perf_counter() - start
                outputs += [_copied(run(more)) for more in feeds[1:]]
                pipe.send((seconds, outputs))
            elif run is not None:
                _, seconds, clock = request
                pipe.send((_median(run, feeds[0], seconds, clock), resident() - before))
        except Exception as error:  # noqa: BLE001 - the tables show what a runtime cannot do
            pipe.send(first_line(error))


def _copied(values: Sequence[Array]) -> list[Array]:
    return [np.array(value) for value in values]


def _median(run: Run, feeds: Feeds, seconds: float, clock: str) -> float:
    run(feeds)
    times = []
    now = CLOCKS[clock]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = now()
        run(feeds)
        times.append(now() - start)
    return statistics.median(times)
