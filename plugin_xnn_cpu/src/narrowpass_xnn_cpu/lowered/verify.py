"""Verifier of lowered partitions."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition


def verify(partition: LoweredPartition) -> None:
    """Check that operands are defined before use, results written once, and layouts permutations.

    Raises:
        BackendError: the partition is not valid; the message names the operation.
    """
    written: dict[Slot, LoweredOp] = {}
    defined = {*partition.inputs.values(), *partition.fixed.values()}
    for item in partition.items:
        if isinstance(item, ShapeNode):
            continue
        for slot in item.operands:
            if slot not in defined and slot not in written and slot.constant is None:
                raise _invalid(item, f"reads {slot.name!r}, which is not computed before")
        _check_output(item, written)
        if sorted(item.layout) != list(range(len(item.layout))):
            raise _invalid(item, f"has the layout {list(item.layout)}, which is no permutation")
        written[item.output] = item
    known = {*defined, *written}
    for place in partition.places:
        if sorted(place.perm) != list(range(len(place.perm))):
            raise BackendError(f"value {place.name!r} lies in the order {list(place.perm)}")
    for name, slot in partition.outputs.items():
        if slot not in known and slot.constant is None:
            raise BackendError(f"output {name!r} is not computed")


def _check_output(op: LoweredOp, written: dict[Slot, LoweredOp]) -> None:
    before = written.get(op.output)
    if op.output.constant is not None:
        raise _invalid(op, f"writes the constant {op.output.name!r}")
    if before is not None and not op.computation.shares_output(before.computation):
        raise _invalid(op, f"writes {op.output.name!r}, as {before.name!r} does")


def _invalid(op: LoweredOp, problem: str) -> BackendError:
    return BackendError(f"operation {op.name!r} ({op.computation.mnemonic}) {problem}")
