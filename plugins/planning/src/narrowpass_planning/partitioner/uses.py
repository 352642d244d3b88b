"""Which operations wait for which."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.partitioner.assigned import Assigned, OpT, Where


def find_users(assigned: Sequence[Assigned[OpT]]) -> tuple[list[int], list[list[int]]]:
    """Return for each operation how many it waits for, and which ones wait for it."""
    makers = {
        value: index
        for index, entry in enumerate(assigned)
        for value in entry.op.outputs
        if entry.where is not Where.WEIGHTS
    }
    waits: list[int] = []
    users: list[list[int]] = [[] for _ in assigned]
    for index, entry in enumerate(assigned):
        needed = {makers[value] for value in entry.op.reads() if value in makers}
        waits.append(len(needed))
        for maker in needed:
            users[maker].append(index)
    return waits, users


def find_awaited(assigned: Sequence[Assigned[OpT]], users: Sequence[Sequence[int]]) -> list[bool]:
    """Return for each operation whether a host operation follows from it; users follow makers."""
    found = [False] * len(assigned)
    for index in range(len(assigned) - 1, -1, -1):
        found[index] = any(
            found[user] or assigned[user].where is Where.HOST for user in users[index]
        )
    return found
