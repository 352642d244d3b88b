"""Dead code elimination: operations whose users were all fused into others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op

OpT = TypeVar("OpT", bound=Op)


def without_superseded(ops: Sequence[OpT], facts: Facts) -> list[OpT]:
    """Return the operations without those whose users are removed, or read another value now.

    What had no user in the model stays. Removed nodes go to the operation that replaces their user,
    so that each node of the model is reported.
    """
    read: set[ir.Value] = set()
    live: list[OpT] = []
    gone: list[OpT] = []
    for op in reversed(ops):
        wanted = any(
            value in read or value.name in facts.needed or not _has_readers(value)
            for value in op.outputs
        )
        if wanted:
            live.append(op)
            read.update(op.reads())
        else:
            gone.append(op)
    live.reverse()
    owners = {node: op for op in live for node in op.nodes}
    for op in gone:  # users before producers
        readers = [use.node for value in op.outputs for use in value.uses()]
        owner = next((owners[node] for node in readers if node in owners), None)
        missing = [node for node in op.nodes if node not in owners]
        if owner is not None:
            owner.superseded[:0] = missing
            owners.update(dict.fromkeys(missing, owner))
    return live


def _has_readers(value: ir.Value) -> bool:
    """Return whether a value of the model has users; values that the planner adds have them."""
    return value.producer() is None or bool(value.uses())
