"""Images of bytes that are raised by 128 between the kernels that multiply them so.

Some processors multiply bytes from 0 to 255 with int8. What one such kernel writes for others alone
is written as they need it: they read it where it lies, in place of making a copy of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from narrowpass_xnn_cpu.lower.convolve import Convolve
from narrowpass_xnn_cpu.plan.partition import Item
from narrowpass_xnn_cpu.plan.step import Slot, Step


def raise_images(items: Sequence[Item], outputs: Collection[Slot]) -> None:
    """Let convolutions write raised bytes where all that read these take them so.

    Args:
        items: of a partition.
        outputs: slots that are read outside of it, as they are.
    """
    readers: dict[Slot, list[Step]] = {}
    for item in items:
        if isinstance(item, Step):
            for slot in dict.fromkeys(item.inputs):
                readers.setdefault(slot, []).append(item)
    for item in items:
        made = _offsettable(item)
        if made is None or made.output in outputs:
            continue
        slot = made.output
        users = readers.get(slot, [])
        fit = [found for user in users if (found := _offsettable(user)) is not None]
        if not fit or len(fit) < len(users):
            continue
        made.offset(output=True)
        for user in fit:
            if user.inputs[0] is slot:
                user.offset(input=True)
            if slot in user.inputs[1:]:
                user.offset(added=True)


def _offsettable(item: Item) -> Convolve | None:
    """Give a convolution that can read and write bytes with the offset."""
    return item if isinstance(item, Convolve) and item.can_offset else None
