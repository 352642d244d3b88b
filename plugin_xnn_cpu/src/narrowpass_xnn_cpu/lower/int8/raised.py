"""Images of bytes that are raised by 128 between the kernels that multiply them so.

Some processors multiply bytes from 0 to 255 with int8. What one such kernel writes for others alone
is written as they need it: they read it where it lies, in place of making a copy of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from narrowpass_planning.plan.partition import Item
from narrowpass_planning.plan.step import Slot, Step
from narrowpass_xnn_cpu.lower.convolve import Convolve
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8


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
        made = _raisable(item)
        if made is None or made[0].output in outputs:
            continue
        slot = made[0].output
        users = readers.get(slot, [])
        fit = [found for user in users if (found := _raisable(user)) is not None]
        if not fit or len(fit) < len(users):
            continue
        made[1].out_raised = True
        for user, operator in fit:
            operator.in_raised |= user.inputs[0] is slot
            operator.other_raised |= slot in user.inputs[1:]


def _raisable(item: Item) -> tuple[Convolve, TiledWindowsS8] | None:
    """Give a convolution and its operator, where that can read and write raised bytes."""
    if not isinstance(item, Convolve) or (operator := item.raisable) is None:
        return None
    return item, operator
