"""Runs jobs as one batch: rows joined, outputs split, errors kept to the job that has them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from narrowpass_serve.models.instance import Instance
from narrowpass_serve.models.queueing import Arrays, Job


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
