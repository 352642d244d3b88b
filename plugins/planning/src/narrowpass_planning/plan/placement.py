"""Memory placement of a partition's slots: views of other slots, or offsets in the arena."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from narrowpass_planning.memory.arena import Lifetime, plan_arena
from narrowpass_planning.plan.step import Run, Shape, Slot, Step, elements

Storage = Mapping[Slot, tuple[Slot, int]]
"""For each slot the root slot whose memory it is a view of (or itself), and its byte offset."""


def size_of(slot: Slot, shapes: Mapping[Slot, Shape]) -> int:
    """Return the bytes of a slot."""
    return elements(shapes[slot]) * slot.dtype.itemsize


def storage_of(shapes: Mapping[Slot, Shape], runs: Mapping[Step, Run]) -> Storage:
    """Return the root and the offset of each slot; a slot that is no view is its own root."""
    found: dict[Slot, tuple[Slot, int]] = {slot: (slot, 0) for slot in shapes}
    for step, run in runs.items():
        if run.view is not None:
            root, offset = found[step.inputs[0]]
            found[step.output] = root, offset + run.view
    return found


def place_intermediates(
    runs: Mapping[Step, Run],
    storage: Storage,
    shapes: Mapping[Slot, Shape],
    outputs: Iterable[Slot],
    elsewhere: Collection[Slot],
) -> tuple[dict[Slot, int], int]:
    """Return the offsets of intermediate slots in the arena, and the bytes of the arena.

    A step may overwrite an input that is dead afterwards, where its `in_place` allows that.

    Args:
        runs: of the steps that run, in order.
        storage: see `storage_of`.
        shapes: of all slots.
        outputs: slots that are live after the last step.
        elsewhere: slots outside of the arena.
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
    offsets, total = plan_arena(lifetimes)
    return {slot: offsets[slot] for slot in inner}, total


def _in_place(step: Step, storage: Storage, shapes: Mapping[Slot, Shape]) -> Iterator[int]:
    """Yield the indices of the inputs that a step may overwrite, element by element."""
    alike = [
        number for number in step.in_place if shapes[step.inputs[number]] == shapes[step.output]
    ]
    # What is read by broadcasting is read again after its place was written.
    others = {storage[slot][0] for number, slot in enumerate(step.inputs) if number not in alike}
    yield from (number for number in alike if storage[step.inputs[number]][0] not in others)
