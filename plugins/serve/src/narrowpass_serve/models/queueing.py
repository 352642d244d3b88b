"""Requests that wait for a program, in groups that may run as one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrowpass_serve.errors import RequestError

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(eq=False)
class Job:
    """A run that somebody waits for.

    Attributes:
        method: to run.
        feeds: arrays by input name.
        outputs: names of the outputs to return; None for all.
        rows: that it has; 1 where it is joined with none.
        kind: jobs of equal kinds may run as one batch; None for no other.
        arrived: when, by `time.monotonic`.
        future: of the outputs.
    """

    method: str
    feeds: Arrays
    outputs: tuple[str, ...] | None = None
    rows: int = 1
    kind: Hashable | None = None
    arrived: float = field(default_factory=time.monotonic)
    future: Future[Arrays] = field(default_factory=Future)


class JobQueue:
    """Jobs in the order that they came, taken as batches. Every method is for any thread.

    Args:
        most: jobs that wait at most.
        rows: of a batch at most; a job of more rows is a batch of its own.
        delay: seconds that a job waits at most for others to join it.
    """

    def __init__(self, most: int, rows: int, delay: float) -> None:
        self._most, self._rows, self._delay = most, rows, delay
        self._groups: dict[Hashable, list[Job]] = {}
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._count

    def put(self, job: Job) -> None:
        """Add a job.

        Raises:
            RequestError: too many wait, or the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise RequestError("the model is being closed; send the request again", 503)
            if self._count >= self._most:
                raise RequestError(
                    f"{self._count} requests wait for this model; send fewer at once", 503
                )
            key = job if job.kind is None else job.kind
            self._groups.setdefault(key, []).append(job)
            self._count += 1
            self._changed.notify()

    def take(self) -> list[Job]:
        """Wait for a batch, and return its jobs; none where the queue is closed and empty."""
        with self._changed:
            while True:
                now = time.monotonic()
                ready = [key for key, jobs in self._groups.items() if self._is_ready(jobs, now)]
                if ready:
                    oldest = min(ready, key=lambda key: self._groups[key][0].arrived)
                    return self._batch(oldest)
                if self._closed and not self._groups:
                    return []
                first = min((jobs[0].arrived for jobs in self._groups.values()), default=None)
                self._changed.wait(None if first is None else first + self._delay - now)

    def close(self) -> None:
        """Refuse further jobs; those that wait are still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_ready(self, jobs: list[Job], now: float) -> bool:
        late = self._closed or now >= jobs[0].arrived + self._delay
        return late or jobs[0].kind is None or sum(job.rows for job in jobs) >= self._rows

    def _batch(self, key: Hashable) -> list[Job]:
        """Take the first jobs of a group, as many as a batch has rows for, at least one."""
        jobs = self._groups.pop(key)
        count, rows = 1, jobs[0].rows
        while count < len(jobs) and rows + jobs[count].rows <= self._rows:
            rows += jobs[count].rows
            count += 1
        if jobs[count:]:
            self._groups[key] = jobs[count:]
            self._changed.notify()  # another instance may take the rest
        self._count -= count
        return jobs[:count]
