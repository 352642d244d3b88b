"""Activations that are stored with an offset of +128 between convolutions.

VNNI multiplies uint8 by int8. A convolution whose result only such kernels read stores it as uint8
(XOR 0x80), so that they read it in place, without a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.int8.convolution import Conv2dInt8
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition


def store_with_offsets(partition: LoweredPartition) -> LoweredPartition:
    """Store results of convolutions with an offset of +128 where all readers support that.

    Args:
        partition: its outputs are stored without an offset.
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
        if inner and all(map(_supports_offset, (op, *users))):
            stored.add(op.output)
    return partition.with_ops(lambda op: _with_offsets(op, stored))


def _supports_offset(op: LoweredOp) -> bool:
    return isinstance(op.computation, Conv2dInt8) and op.computation.supports_offset


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
