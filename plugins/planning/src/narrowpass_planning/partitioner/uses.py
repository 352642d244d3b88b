"""Dependencies between operations."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.partitioner.assignment import Assignment, OpT, Target


def find_users(assigned: Sequence[Assignment[OpT]]) -> tuple[list[int], list[list[int]]]:
    """Return for each operation how many others it depends on, and which ones depend on it."""
    producers = {
        value: index
        for index, entry in enumerate(assigned)
        for value in entry.op.outputs
        if entry.target is not Target.WEIGHTS
    }
    waits: list[int] = []
    users: list[list[int]] = [[] for _ in assigned]
    for index, entry in enumerate(assigned):
        needed = {producers[value] for value in entry.op.reads() if value in producers}
        waits.append(len(needed))
        for producer in needed:
            users[producer].append(index)
    return waits, users


def find_host_producers(
    assigned: Sequence[Assignment[OpT]], users: Sequence[Sequence[int]]
) -> list[bool]:
    """Return for each operation whether a host operation depends on it, directly or not.

    Args:
        assigned: producers before their users.
        users: see `find_users`.
    """
    found = [False] * len(assigned)
    for index in range(len(assigned) - 1, -1, -1):
        found[index] = any(
            found[user] or assigned[user].target is Target.HOST for user in users[index]
        )
    return found
