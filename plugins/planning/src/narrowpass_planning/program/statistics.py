"""Counts of a compiled program, and the bytes that it has in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from narrowpass_planning.program.method import Method
from narrowpass_planning.weights.entry import Entry, reasons
from narrowpass_planning.weights.session import Session


def statistics_of(
    names: Sequence[str], compiled: Sequence[Method], sessions: Sequence[Session]
) -> dict[str, Any]:
    """Return what `PlannedProgram.stats` does.

    Args:
        names: of the program's methods.
        compiled: methods; those that sessions run have the names of the methods that they are.
        sessions: of the weights cache, which hold the packed weights of these.
    """
    plans = [plan for method in compiled for plan in method.plans]
    partitions = [part for method in compiled for part in method.partitions]
    return {
        "methods": len(names),
        "nodes": len(plans),
        "native_nodes": sum(not plan.reason for plan in plans),
        "partitions": len(partitions),
        "steps": sum(len(partition.steps) for partition in partitions),
        "scratch_bytes": _scratch(compiled),
        "weights": _weights(names, compiled, sessions),
    }


def _scratch(methods: Iterable[Method]) -> int:
    return sum({method.workspace: method.workspace.size for method in methods}.values())


def _raw(methods: Iterable[Method]) -> int:
    """Return the bytes of constants that are used without packing, each counted once."""
    return sum({key: size for method in methods for key, size in method.raw.items()}.values())


def _weights(
    names: Sequence[str], compiled: Sequence[Method], sessions: Sequence[Session]
) -> dict[str, Any]:
    held = {(entry.address, entry.name): entry for each in sessions for entry in each.entries()}
    entries = list(held.values())
    counts = [session.counts for session in sessions]
    by_name = {name: [method for method in compiled if method.name == name] for name in names}
    return {
        "raw_bytes": _raw(compiled),
        "heap_bytes": sum(entry.size for entry in entries if not entry.mapped),
        "mapped_bytes": sum(entry.size for entry in entries if entry.mapped),
        "hits": sum(each.hits for each in counts),
        "misses": sum(each.misses for each in counts),
        "packs": sum(each.packs for each in counts),
        "private": reasons(entries),
        "methods": {
            name: {
                "raw_bytes": _raw(methods),
                "packed_bytes": _packed(name, entries, sessions),
                "scratch_bytes": _scratch(methods),
            }
            for name, methods in by_name.items()
        },
    }


def _packed(name: str, entries: Iterable[Entry], sessions: Iterable[Session]) -> int:
    """Return the bytes of the blocks that were packed, or found, for methods of a name."""
    found = frozenset().union(*(session.packed_for(name) for session in sessions))
    sizes = Counter[str]()
    for entry in entries:
        sizes[entry.name] += entry.size
    return sum(sizes[each] for each in found)
