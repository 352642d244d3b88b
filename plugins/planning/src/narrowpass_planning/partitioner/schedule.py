"""The order of operations, grouped into as few partitions as possible."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Sequence

from narrowpass_planning.partitioner.assignment import Assignment, OpT, Target, Unit
from narrowpass_planning.partitioner.uses import find_host_producers, find_users


def schedule(assigned: Sequence[Assignment[OpT]]) -> list[Unit[OpT]]:
    """Order operations into few units, so that native partitions are as large as they can be.

    Ready host operations come first; then native ones that host operations depend on; and so on,
    until all that is left is native, and is one partition. A unit depends on earlier ones only, so
    that there is no cycle between partitions.
    """
    waits, users = find_users(assigned)
    feeds_host = find_host_producers(assigned, users)
    hosts = sum(entry.target is Target.HOST for entry in assigned)
    ready: dict[_Queue, list[int]] = {queue: [] for queue in _Queue}
    queues = [_queue_of(entry, feeds_host[index]) for index, entry in enumerate(assigned)]
    for index, count in enumerate(waits):
        if not count and assigned[index].target is not Target.WEIGHTS:
            ready[queues[index]].append(index)
    units: list[Unit[OpT]] = []
    native = False
    while any(ready.values()):
        unit = Unit[OpT](native, [])
        kinds = [_Queue.SHAPES, _Queue.FEEDS_HOST if native else _Queue.HOST]
        if native and not hosts:
            kinds.append(_Queue.LATE)
        while index := _next(ready, kinds):
            entry = assigned[index - 1]
            unit.ops.append(entry)
            hosts -= entry.target is Target.HOST
            for user in users[index - 1]:
                waits[user] -= 1
                if not waits[user]:
                    heapq.heappush(ready[queues[user]], user)
        if unit.ops:
            units.append(unit)
        native = not native
    return units


class _Queue(enum.Enum):
    """The queue of an operation whose inputs are all computed."""

    SHAPES = "shapes"
    HOST = "host"
    FEEDS_HOST = "feeds host"
    """Native, and a host operation depends on it."""
    LATE = "late"
    """Native, and no host operation depends on it."""


def _queue_of(entry: Assignment[OpT], feeds_host: bool) -> _Queue:
    if entry.target is Target.NATIVE:
        return _Queue.FEEDS_HOST if feeds_host else _Queue.LATE
    return _Queue.HOST if entry.target is Target.HOST else _Queue.SHAPES


def _next(ready: dict[_Queue, list[int]], kinds: Iterable[_Queue]) -> int:
    """Pop the first ready operation of these kinds; return its index plus 1, or 0 for none."""
    for kind in kinds:
        if ready[kind]:
            return heapq.heappop(ready[kind]) + 1
    return 0
