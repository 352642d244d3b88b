"""Operations that nobody needs any more, since others do their work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op

OpT = TypeVar("OpT", bound=Op)


def without_superseded(ops: Sequence[OpT], facts: Facts) -> list[OpT]:
    """Leave out operations all of whose readers are left out, or read something else now.

    What nobody read in the model stays. Nodes that are left out go to the operation that does the
    work of who read them, so that each node of the model is told of.
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
    tellers = {node: op for op in live for node in op.nodes}
    for op in gone:  # readers before makers
        readers = [use.node for value in op.outputs for use in value.uses()]
        heir = next((tellers[node] for node in readers if node in tellers), None)
        missing = [node for node in op.nodes if node not in tellers]
        if heir is not None:
            heir.superseded[:0] = missing
            tellers.update(dict.fromkeys(missing, heir))
    return live


def _has_readers(value: ir.Value) -> bool:
    """Return whether somebody reads a value of the model; values of ours are made to be read."""
    return value.producer() is None or bool(value.uses())
