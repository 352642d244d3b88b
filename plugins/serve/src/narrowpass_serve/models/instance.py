"""The programs that run the batches of a model, one batch at a time.

Rows of jobs are joined, outputs are split, and errors are kept to the job that has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_serve.models.queueing import Arrays, Job

if TYPE_CHECKING:
    from narrowpass import Program


_PLANNING = "narrowpass_planning"
"""The package of programs that plan memory and kernels for the sizes that they run with."""


class Instance:
    """Programs of a bundle, one for each of some numbers of rows.

    A program that plans for its sizes takes milliseconds to plan for others, and batches have
    another number of rows each time. So a batch runs in parts, whose rows are powers of two, each
    on a program that has no others; all share the packed weights. Other programs run a batch whole.

    Args:
        load: compiles the bundle.

    Attributes:
        program: the one that runs what is not joined.
    """

    def __init__(self, load: Callable[[], Program]) -> None:
        self._load = load
        self.program = load()
        self._sized: dict[int, Program] = {}

    def prepare(self, most: int) -> None:
        """Compile what batches need.

        Args:
            most: rows of a batch.
        """
        if not any(c.__module__.partition(".")[0] == _PLANNING for c in type(self.program).__mro__):
            return
        self._sized = {1: self.program}
        while 2 * max(self._sized) <= most:
            self._sized = {2 * max(self._sized): self._load(), **self._sized}

    def run_rows(
        self, feeds: Arrays, rows: int, method: str, outputs: tuple[str, ...] | None
    ) -> Arrays:
        """Run rows that are independent.

        Args:
            feeds: arrays by input name, each with `rows` rows.
            rows: how many, at least one.
            method: to run.
            outputs: names of the outputs to return; None for all.

        Raises:
            NarrowpassError: as `Program.run`.
        """
        if not self._sized:
            return _checked(self.program.run(feeds, method, outputs), rows)
        parts, start = [], 0
        for size, program in self._sized.items():  # the largest first
            while rows - start >= size:
                part = {name: value[start : start + size] for name, value in feeds.items()}
                parts.append(_checked(program.run(part, method, outputs), size))
                start += size
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        """Free the programs."""
        for program in {self.program, *self._sized.values()}:
            program.close()


def _checked(outputs: Arrays, rows: int) -> Arrays:
    """Check that outputs have the rows of the inputs.

    Raises:
        BackendError: one has not, against what the model says.
    """
    for name, value in outputs.items():
        if not _has_rows(value, rows):
            raise BackendError(
                f"output {name!r} does not have the {rows} rows of the inputs, as the model says; "
                "serve it with --max-batch 1"
            )
    return outputs


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == rows


def run_batch(instance: Instance, jobs: Sequence[Job]) -> int:
    """Run jobs, and set their futures.

    Where a batch fails, each job runs alone, so that an error reaches only those whose own rows
    lead to it.

    Args:
        instance: that runs.
        jobs: of one kind; those that were cancelled meanwhile are left out.

    Returns:
        The rows that ran.
    """
    jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
    found: Sequence[Arrays] = ()
    if len(jobs) > 1:
        try:
            found = _run_joined(instance, jobs)
        except Exception:  # noqa: BLE001  # each job finds its own error below
            found = ()
    if found:
        for job, outputs in zip(jobs, found, strict=True):
            job.future.set_result(outputs)
        return sum(job.rows for job in jobs)
    for job in jobs:
        try:
            outputs = _run_alone(instance, job)
        except BaseException as error:  # noqa: BLE001  # it is the job's, whatever it is
            job.future.set_exception(error)
        else:
            job.future.set_result(outputs)
    return sum(job.rows for job in jobs)


def _run_alone(instance: Instance, job: Job) -> Arrays:
    if job.kind is None:
        return instance.program.run(job.feeds, job.method, job.outputs)
    return instance.run_rows(job.feeds, job.rows, job.method, job.outputs)


def _run_joined(instance: Instance, jobs: Sequence[Job]) -> list[Arrays]:
    """Return the outputs of each job."""
    first = jobs[0]
    feeds = {name: np.concatenate([job.feeds[name] for job in jobs]) for name in first.feeds}
    bounds = np.cumsum([0, *(job.rows for job in jobs)])
    outputs = instance.run_rows(feeds, int(bounds[-1]), first.method, first.outputs)
    return [
        {name: value[start:end] for name, value in outputs.items()}
        for start, end in itertools.pairwise(bounds)
    ]
