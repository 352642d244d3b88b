"""Which memory each slot of a partition lies in: that of another slot, or a place in the arena."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from narrowpass_planning.memory.arena import Lifetime, place
from narrowpass_planning.plan.step import Run, Shape, Slot, Step, elements

Storage = Mapping[Slot, tuple[Slot, int]]
"""For each slot the slot in whose memory it lies, and the byte where it starts."""


def size_of(slot: Slot, shapes: Mapping[Slot, Shape]) -> int:
    """Return the bytes of a slot."""
    return elements(shapes[slot]) * slot.dtype.itemsize


def storage_of(shapes: Mapping[Slot, Shape], runs: Mapping[Step, Run]) -> Storage:
    """Return where slots lie that are views of others; the rest lie in memory of their own."""
    found: dict[Slot, tuple[Slot, int]] = {slot: (slot, 0) for slot in shapes}
    for step, run in runs.items():
        if run.view is not None:
            root, offset = found[step.inputs[0]]
            found[step.output] = root, offset + run.view
    return found


def place_inner(
    runs: Mapping[Step, Run],
    storage: Storage,
    shapes: Mapping[Slot, Shape],
    outputs: Iterable[Slot],
    elsewhere: Collection[Slot],
) -> tuple[dict[Slot, int], int]:
    """Return the offsets of inner slots in the arena, and the bytes of all of them.

    A step may write over an input that nothing reads later, where its `in_place` allows that.

    Args:
        runs: of the steps that run, in order.
        storage: see `storage_of`.
        shapes: of all slots.
        outputs: what is read after the last step.
        elsewhere: slots that lie outside of the arena.
    """
    steps = list(runs)
    first: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    for index, step in enumerate(steps):
        for slot in step.inputs:
            last[storage[slot][0]] = index
        root = storage[step.output][0]
        first.setdefault(root, index)
        last.setdefault(root, index)
    for slot in outputs:
        last[storage[slot][0]] = len(steps)
    inner = {root: index for root, index in first.items() if root not in elsewhere}
    lifetimes = []
    for root, index in inner.items():
        step, size = steps[index], size_of(root, shapes)
        taken = (storage[step.inputs[number]][0] for number in _in_place(step, storage, shapes))
        fits = (
            slot
            for slot in taken
            if slot in inner and last[slot] == index and size_of(slot, shapes) == size
        )
        lifetimes.append(Lifetime(root, size, index, last[root], next(fits, None)))
    offsets, total = place(lifetimes)
    return {slot: offsets[slot] for slot in inner}, total


def _in_place(step: Step, storage: Storage, shapes: Mapping[Slot, Shape]) -> Iterator[int]:
    """Yield the inputs of a step that its output may be written over, element by element."""
    alike = [
        number for number in step.in_place if shapes[step.inputs[number]] == shapes[step.output]
    ]
    # What is read by broadcasting is read again after its place was written.
    others = {storage[slot][0] for number, slot in enumerate(step.inputs) if number not in alike}
    yield from (number for number in alike if storage[step.inputs[number]][0] not in others)
