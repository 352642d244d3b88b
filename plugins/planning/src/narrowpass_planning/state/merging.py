"""Binds several sessions to one run, and runs them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.lanes import NoLanesError, UnevenLanesError
from narrowpass_planning.state.errors import CacheFullError
from narrowpass_planning.state.merged import Lane, MergedRun
from narrowpass_planning.state.method import AppendingMethod

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from narrowpass.runtime.arrays import Feeds, Outputs
    from narrowpass_planning.program.method import Method


class Merger(Protocol):
    """What a run of several sessions needs of their program; see `session.Appender`."""

    def threads(self) -> Pool:
        """Return the executor's threads."""

    def naming(self, method: Method) -> AbstractContextManager[None]:
        """Add the method's name to errors of the computation within the block."""


class Merged(Protocol):
    """A session that runs with others; see `session.AppendingSession`."""

    def lane(
        self, appending: AppendingMethod, name: str, feeds: Feeds, rows: int, *, check: bool
    ) -> Lane:
        """Return what the session brings to the run."""

    def advance(self, appending: AppendingMethod, rows: int, results: Outputs) -> None:
        """Keep what the run has appended."""


def run_merged(
    program: Merger, appending: AppendingMethod, name: str, pairs: Sequence[tuple[Merged, Feeds]]
) -> list[Outputs] | None:
    """Run a method of several sessions at once.

    Args:
        program: of the sessions.
        appending: the method.
        name: of the method.
        pairs: the sessions, each with its feeds.

    Returns:
        The outputs of each; None, with all states as they were, where the sessions cannot run
        together, or one of them cannot run: in turn, it is known which one.
    """
    pool = program.threads()
    try:
        with appending.method.workspace.entered(), program.naming(appending.method):
            run, results = appending.merged, None
            if run is not None:
                lanes = [each.lane(appending, name, fed, 1, check=False) for each, fed in pairs]
                results = run.run(lanes, pool)
            if run is None or results is None:
                appending.token = appending.merged = None  # what they bind is to be freed
                run, lanes = _prepare(appending, name, pairs, pool)
                results = run.run(lanes, pool)
            if results is None:
                return None
            appending.merged = run
            for (each, _), found in zip(pairs, results, strict=True):
                each.advance(appending, run.rows, found)
            return results
    except NoLanesError:
        appending.never_merges = True
        return None
    except (BackendError, DataError, UsageError, UnevenLanesError):
        return None


def _prepare(
    appending: AppendingMethod, name: str, pairs: Sequence[tuple[Merged, Feeds]], pool: Pool
) -> tuple[MergedRun, list[Lane]]:
    """Bind the sessions, with caches of enough room.

    Raises:
        UnevenLanesError: one tape cannot compute them.
        DataError: feeds that do not fit.
        BackendError: likewise.
    """
    rows = 1
    while True:
        lanes = [each.lane(appending, name, fed, rows, check=True) for each, fed in pairs]
        try:
            sizes = _sizes(appending, lanes, pool)
        except CacheFullError as full:
            if full.rows <= rows:
                raise
            rows = full.rows
            continue
        found = appending.appended_rows()
        if found <= rows:
            break
        rows = found
    for _, fed in pairs:
        appending.check_rows(fed)
    (partition,) = appending.method.partitions
    return MergedRun(partition, sizes, lanes, appending.masks, found, pool), lanes


def _sizes(appending: AppendingMethod, lanes: Sequence[Lane], pool: Pool) -> list[Sizes]:
    """Return the sizes of each lane; those whose caches have room for as many rows share them."""
    known: dict[Hashable, Sizes] = {}
    found = []
    for lane in lanes:
        caches = {each: lane.buffers.arrays[each] for each in appending.caches}
        key = tuple(array.shape for array in caches.values())
        if key not in known:
            bound = appending.method.bind({**lane.feeds, **caches}, pool)
            if bound is None:
                raise UnevenLanesError("more than one partition runs")
            known[key] = bound[0].sizes()
        found.append(known[key])
    return found
