"""Runs jobs as one batch: rows joined, outputs split, errors kept to the job that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass_serve.models.queueing import Arrays, Job

if TYPE_CHECKING:
    from narrowpass import Program

Ran = Callable[[int, float], None]
"""Is called with the rows of each batch that ran, and with its seconds."""


def run_batch(program: Program, jobs: Sequence[Job]) -> int:
    """Run jobs, and set their futures.

    Where a batch fails, each job runs alone, so that an error reaches only those whose own rows
    lead to it.

    Args:
        program: that runs.
        jobs: of one kind; those that were cancelled meanwhile are left out.

    Returns:
        The rows that ran.
    """
    jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
    if len(jobs) > 1:
        try:
            found = _run_joined(program, jobs)
        except Exception:  # noqa: BLE001  # each job finds its own error below
            found = None
        if found is not None:
            for job, outputs in zip(jobs, found, strict=True):
                job.future.set_result(outputs)
            return sum(job.rows for job in jobs)
    for job in jobs:
        try:
            outputs = program.run(job.feeds, job.method, job.outputs)
        except BaseException as error:  # noqa: BLE001  # it is the job's, whatever it is
            job.future.set_exception(error)
        else:
            job.future.set_result(outputs)
    return sum(job.rows for job in jobs)


def _run_joined(program: Program, jobs: Sequence[Job]) -> list[Arrays] | None:
    """Return the outputs of each job; None where outputs do not have the rows of the inputs."""
    first = jobs[0]
    feeds = {name: np.concatenate([job.feeds[name] for job in jobs]) for name in first.feeds}
    outputs = program.run(feeds, first.method, first.outputs)
    bounds = np.cumsum([0, *(job.rows for job in jobs)])
    if any(not _has_rows(value, int(bounds[-1])) for value in outputs.values()):
        return None
    return [
        {name: value[start:end] for name, value in outputs.items()}
        for start, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == rows
