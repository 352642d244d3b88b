"""Counts of a compiled program, and the bytes that it has in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from narrowpass_planning.program.method import Method
from narrowpass_planning.weights.entry import reasons
from narrowpass_planning.weights.session import Counts, Session


def statistics_of(methods: Mapping[str, Method], session: Session | None) -> dict[str, Any]:
    """Return what `PlannedProgram.stats` does; `session` has the packed weights."""
    plans = [plan for method in methods.values() for plan in method.plans]
    partitions = [part for method in methods.values() for part in method.partitions]
    workspaces = {method.workspace: method.workspace.size for method in methods.values()}
    return {
        "methods": len(methods),
        "nodes": len(plans),
        "native_nodes": sum(not plan.reason for plan in plans),
        "partitions": len(partitions),
        "steps": sum(len(partition.steps) for partition in partitions),
        "scratch_bytes": sum(workspaces.values()),
        "weights": _weights(methods, session),
    }


def _weights(methods: Mapping[str, Method], session: Session | None) -> dict[str, Any]:
    entries = [] if session is None else list(session.entries())
    sizes = Counter[str]()
    for entry in entries:
        sizes["mapped" if entry.mapped else "heap"] += entry.size
    raw = {name: method.raw for name, method in methods.items()}
    packed = {} if session is None else session.sizes()
    counts = Counts() if session is None else session.counts
    whole = {key: size for arrays in raw.values() for key, size in arrays.items()}
    return {
        "raw_bytes": sum(whole.values()),
        "heap_bytes": sizes["heap"],
        "mapped_bytes": sizes["mapped"],
        "hits": counts.hits,
        "misses": counts.misses,
        "packs": counts.packs,
        "private": reasons(entries),
        "methods": {
            name: {
                "raw_bytes": sum(raw[name].values()),
                "packed_bytes": packed.get(name, 0),
                "scratch_bytes": method.workspace.size,
            }
            for name, method in methods.items()
        },
    }
