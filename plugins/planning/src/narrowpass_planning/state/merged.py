"""Runs of several sessions that one tape computes: each session is a lane."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.lanes import BoundLanes, UnevenLanesError
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.step import Array, Shape
from narrowpass_planning.state.buffers import Buffers
from narrowpass_planning.state.fed import FeedForm


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
