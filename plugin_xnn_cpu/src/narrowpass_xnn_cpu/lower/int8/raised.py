"""Images of bytes that are raised by 128 between the kernels that multiply them so.

Some processors multiply bytes from 0 to 255 with int8. What one such kernel writes for others alone
is written as they need it: they read it where it lies, in place of making a copy of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from narrowpass_xnn_cpu.lower.convolution import Convolve
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
        if not isinstance(item, Convolve) or not item.can_be_raised or item.output in outputs:
            continue
        users = readers.get(item.output, [])
        fit = [user for user in users if isinstance(user, Convolve) and user.can_be_raised]
        if fit and len(fit) == len(users):
            for step in (item, *fit):
                step.raise_bytes(item.output)
