"""Runs of several sessions that one tape computes: each session is a lane."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.lanes import BoundLanes, NoLanesError, UnevenLanesError
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.step import Array, Shape
from narrowpass_planning.state.buffers import Buffers
from narrowpass_planning.state.errors import CacheFullError
from narrowpass_planning.state.fed import FeedForm

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds, Outputs
    from narrowpass_planning.state.method import AppendingMethod
    from narrowpass_planning.state.session import Appender, AppendingSession


@dataclass(frozen=True)
class Lane:
    """What one session brings to a run of several.

    Attributes:
        feeds: of the compiled method, without caches; that of the number of rows among them.
        buffers: of its caches, which no other session reads.
        length: rows that they have.
    """

    feeds: Mapping[str, Any]
    buffers: Buffers
    length: int


class MergedRun:
    """A run of bound lanes on feeds of fixed shapes, whose caches stay bound.

    Args:
        partition: that runs.
        sizes: of each lane.
        lanes: the sessions' feeds and caches.
        masks: names of the inputs with a column for each row of the caches.
        rows: that each run appends to each lane.
        pool: the threads.

    Attributes:
        rows: that each run appends to each lane.

    Raises:
        UnevenLanesError: one tape cannot compute them.
    """

    def __init__(
        self,
        partition: Partition,
        sizes: Sequence[Sizes],
        lanes: Sequence[Lane],
        masks: Sequence[str],
        rows: int,
        pool: Pool,
    ) -> None:
        self._partition, self.rows, self._threads = partition, rows, pool.threads
        first = lanes[0]
        self._feeds = [
            FeedForm.of(name, array, elastic=name in masks) for name, array in first.feeds.items()
        ]
        if not all(map(self._fits, lanes)):
            raise UnevenLanesError("feeds have other shapes in other lanes")
        caches = [name for name in first.buffers.arrays if name in partition.inputs]
        self._shapes = [_shapes(lane.buffers) for lane in lanes]
        self._bound: BoundLanes = partition.bind_lanes(sizes, caches, masks, pool)
        self._caches = caches
        self._buffers: list[weakref.ref[Buffers]] = []
        self._bind(lanes)

    def _fits(self, lane: Lane) -> bool:
        total = lane.length + self.rows
        fed = lane.feeds
        return (
            total <= lane.buffers.room
            and len(fed) == len(self._feeds)
            and all(each.fits(fed.get(each.name), total) for each in self._feeds)
        )

    def _bind(self, lanes: Sequence[Lane]) -> None:
        """Bind the caches of lanes."""
        self._buffers = []  # an interrupt in between leaves buffers of no session bound
        self._bound.bind_apart(
            {name: [lane.buffers.arrays[name] for lane in lanes] for name in self._caches}
        )
        # The tape has addresses only: a session that is gone, or reset, frees its buffers.
        self._buffers = [weakref.ref(lane.buffers) for lane in lanes]

    def run(self, lanes: Sequence[Lane], pool: Pool) -> list[dict[str, Array]] | None:
        """Run it; the caller has entered the workspace.

        Returns:
            The outputs of each lane; None, with nothing computed, where anything but the elements
            of feeds, the columns of masks, and the memory of caches differs from the last run.
        """
        if self._partition.lanes is not self._bound or pool.threads != self._threads:
            return None
        if len(lanes) != len(self._buffers) or not all(map(self._fits, lanes)):
            return None
        known = zip(self._buffers, lanes, strict=True)
        if any(known_buffers() is not lane.buffers for known_buffers, lane in known):
            if [_shapes(lane.buffers) for lane in lanes] != self._shapes:
                return None
            self._bind(lanes)
        return self._bound.run([lane.feeds for lane in lanes], pool)


def _shapes(buffers: Buffers) -> list[Shape]:
    return [array.shape for array in buffers.arrays.values()]


def run_merged(
    program: Appender,
    appending: AppendingMethod,
    name: str,
    pairs: Sequence[tuple[AppendingSession, Feeds]],
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
    appending: AppendingMethod,
    name: str,
    pairs: Sequence[tuple[AppendingSession, Feeds]],
    pool: Pool,
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
