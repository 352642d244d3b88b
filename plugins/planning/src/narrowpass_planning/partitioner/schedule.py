"""The order of operations: few units, each native or not."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Sequence

from narrowpass_planning.partitioner.assigned import Assigned, OpT, Unit, Where
from narrowpass_planning.partitioner.uses import find_awaited, find_users


def schedule(assigned: Sequence[Assigned[OpT]]) -> list[Unit[OpT]]:
    """Order operations into few units, so that native partitions are as large as they can be.

    Host operations that can run, do; then native ones, as far as host operations wait for them;
    and so on, until all that is left is native, and is one partition. A unit depends on earlier
    ones only, so that there is no cycle between partitions.
    """
    waits, users = find_users(assigned)
    awaited = find_awaited(assigned, users)
    hosts = sum(entry.where is Where.HOST for entry in assigned)
    ready: dict[_Turn, list[int]] = {turn: [] for turn in _Turn}
    turns = [_turn(entry, awaited[index]) for index, entry in enumerate(assigned)]
    for index, count in enumerate(waits):
        if not count and assigned[index].where is not Where.WEIGHTS:
            ready[turns[index]].append(index)
    units: list[Unit[OpT]] = []
    native = False
    while any(ready.values()):
        unit = Unit[OpT](native, [])
        kinds = [_Turn.SHAPES, _Turn.AWAITED if native else _Turn.HOST]
        if native and not hosts:
            kinds.append(_Turn.LATE)
        while index := _next(ready, kinds):
            entry = assigned[index - 1]
            unit.ops.append(entry)
            hosts -= entry.where is Where.HOST
            for user in users[index - 1]:
                waits[user] -= 1
                if not waits[user]:
                    heapq.heappush(ready[turns[user]], user)
        if unit.ops:
            units.append(unit)
        native = not native
    return units


class _Turn(enum.Enum):
    """When an operation runs that has all that it reads."""

    SHAPES = "shapes"
    HOST = "host"
    AWAITED = "awaited"
    """Native, and a host operation needs what comes of it."""
    LATE = "late"
    """Native, and no host operation does."""


def _turn(entry: Assigned[OpT], awaited: bool) -> _Turn:
    if entry.where is Where.NATIVE:
        return _Turn.AWAITED if awaited else _Turn.LATE
    return _Turn.HOST if entry.where is Where.HOST else _Turn.SHAPES


def _next(ready: dict[_Turn, list[int]], kinds: Iterable[_Turn]) -> int:
    """Pop the first ready operation of these kinds; return its index plus 1, or 0 for none."""
    for kind in kinds:
        if ready[kind]:
            return heapq.heappop(ready[kind]) + 1
    return 0
