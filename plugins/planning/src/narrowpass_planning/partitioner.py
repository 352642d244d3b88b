"""The partitioner: which operations the backend executes, and in what order.

`assign` chooses the target of each operation: the backend, numpy, or shape propagation; with the
reason. `schedule` orders the operations, grouped into as few partitions as possible.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels

__all__ = ["Assignment", "Target", "Unit", "assign", "schedule"]

OpT = TypeVar("OpT", bound=Op)
"""The operations of a backend."""


class Target(enum.Enum):
    """What executes an operation."""

    NATIVE = "native"
    """The backend, in a partition."""
    WEIGHTS = "weights"
    """Packing: evaluated once, with the weights that it changes."""
    SHAPES = "shapes"
    """Shape propagation: evaluated when shapes change, not in each run."""
    HOST = "host"
    """A numpy kernel or the reference evaluator."""


@dataclass
class Assignment(Generic[OpT]):
    """An operation and its target.

    Attributes:
        op: the operation.
        target: what executes the operation.
        reason: why it is not native; empty where it is.
    """

    op: OpT
    target: Target
    reason: str = ""


@dataclass
class Unit(Generic[OpT]):
    """Operations that run together, in order; the native ones of a unit are one partition.

    Attributes:
        native: whether it is a partition.
        ops: the operations, in order.
    """

    native: bool
    ops: list[Assignment[OpT]]


_TINY = 16
"""Elements that numpy computes with as fast as it starts."""


def assign(
    ops: Sequence[OpT], facts: Facts, reason_of: Callable[[OpT, Facts], str | None]
) -> list[Assignment[OpT]]:
    """Choose a target for each operation; `facts.fixed` gets the values that follow from shapes.

    Args:
        ops: in order.
        facts: of the graph.
        reason_of: returns why a backend cannot run an operation; None where it can.
    """
    assigned = []
    for op in ops:
        if facts.is_constant(op.output):
            assigned.append(Assignment(op, Target.WEIGHTS))
            continue
        if _follows_from_shapes(op, facts):
            facts.fixed.update(value.name or "" for value in op.outputs if value.name)
            assigned.append(Assignment(op, Target.SHAPES))
            continue
        reason = reason_of(op, facts)
        target = Target.NATIVE if reason is None else Target.HOST
        assigned.append(Assignment(op, target, reason or ""))
    _leave_to_numpy(assigned, facts)
    return assigned


def _leave_to_numpy(assigned: Sequence[Assignment[OpT]], facts: Facts) -> None:
    """Let numpy compute operations of tiny tensors that only host operations depend on.

    An example is the comparison of a sampling rate: a partition costs more than three numpy nodes.
    """
    users = _find_users(assigned)[1]
    feeds_host = _find_host_producers(assigned, users)
    native = {v for e in assigned if e.target is Target.NATIVE for v in e.op.outputs}
    for index, entry in enumerate(assigned):
        op = entry.op
        if entry.target is not Target.NATIVE or not feeds_host[index] or len(op.nodes) != 1:
            continue
        given = [value for value in op.inputs if value is not None]
        computed = [value for value in given if not facts.is_fixed(value)]
        tiny = all(_is_tiny(value, facts) for value in (*given, *op.outputs))
        if not tiny or not native.isdisjoint(computed) or op.kind != op.nodes[0].op_type:
            continue
        if kernels.kernel_for(op, facts) is not None:
            entry.target = Target.HOST
            native.difference_update(op.outputs)


def _is_tiny(value: ir.Value, facts: Facts) -> bool:
    sizes = facts.dims(value)
    if sizes is None or value.name in facts.observed:
        return False
    dims = [dim for dim in sizes if isinstance(dim, int)]
    return len(dims) == len(sizes) and math.prod(dims) <= _TINY


def _follows_from_shapes(op: Op, facts: Facts) -> bool:
    if op.nodes[0].domain == OUR_DOMAIN and op.kind == GUARD:
        return facts.is_fixed(op.input(0))
    if not repeatable(op, facts):
        return False
    if op.kind in ("Shape", "Size"):
        return True
    return all(value is None or facts.is_fixed(value) for value in op.inputs)


def schedule(assigned: Sequence[Assignment[OpT]]) -> list[Unit[OpT]]:
    """Order operations into few units, so that native partitions are as large as they can be.

    Ready host operations come first; then native ones that host operations depend on; and so on,
    until all that is left is native, and is one partition. A unit depends on earlier ones only, so
    that there is no cycle between partitions.
    """
    waits, users = _find_users(assigned)
    feeds_host = _find_host_producers(assigned, users)
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


def _find_users(assigned: Sequence[Assignment[OpT]]) -> tuple[list[int], list[list[int]]]:
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


def _find_host_producers(
    assigned: Sequence[Assignment[OpT]], users: Sequence[Sequence[int]]
) -> list[bool]:
    """Return for each operation whether a host operation depends on it, directly or not.

    Args:
        assigned: producers before their users.
        users: see `_find_users`.
    """
    found = [False] * len(assigned)
    for index in range(len(assigned) - 1, -1, -1):
        found[index] = any(
            found[user] or assigned[user].target is Target.HOST for user in users[index]
        )
    return found
