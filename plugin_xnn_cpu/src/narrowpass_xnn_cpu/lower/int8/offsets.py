"""Images of bytes that are raised by 128 between the kernels that multiply them so.

Some processors multiply bytes from 0 to 255 with int8. What one such kernel writes for others alone
is written as they need it: they read it where it lies, in place of making a copy of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.int8.convolution import Conv2dInt8
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition


def with_offsets(partition: LoweredPartition) -> LoweredPartition:
    """Let convolutions write bytes with an offset of +128 where all that read these take them so.

    Args:
        partition: its outputs are read outside of it, as they are.
    """
    outputs = set(partition.outputs.values())
    readers: dict[Slot, list[LoweredOp]] = {}
    for op in partition.ops:
        for slot in dict.fromkeys(op.operands):
            readers.setdefault(slot, []).append(op)
    stored: set[Slot] = set()
    for op in partition.ops:
        users = readers.get(op.output, [])
        inner = bool(users) and op.output not in outputs
        if inner and all(map(_takes_offset, (op, *users))):
            stored.add(op.output)
    return partition.with_ops(lambda op: _with_offsets(op, stored))


def _takes_offset(op: LoweredOp) -> bool:
    return isinstance(op.computation, Conv2dInt8) and op.computation.takes_offset


def _with_offsets(op: LoweredOp, stored: Collection[Slot]) -> LoweredOp:
    """Return an operation that reads and writes these slots with an offset."""
    if not isinstance(op.computation, Conv2dInt8):
        return op
    computation = dataclasses.replace(
        op.computation,
        in_offset=op.operands[0] in stored,
        out_offset=op.output in stored,
        other_offset=any(slot in stored for slot in op.operands[1:]),
    )
    return dataclasses.replace(op, computation=computation)
