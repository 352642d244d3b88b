"""The arena planner: offsets of slots in a partition's arena; live slots never overlap.

Linear scan over lifetimes, as in register allocation (Poletto and Sarkar, "Linear scan register
allocation", 1999), with best fit: a block takes the smallest gap that is large enough. It is greedy
in the order of execution, in contrast to greedy-by-size (Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020), which needs all sizes before it places a block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from narrowpass_planning.memory.allocator import ALIGNMENT

_SPARE = 64
"""Bytes after each block: kernels may read a little beyond what is theirs."""


@dataclass(frozen=True)
class Lifetime:
    """A block of the arena and the interval of steps in which it is live.

    Attributes:
        key: identifies it.
        size: its bytes.
        first: the step that writes it.
        last: the last step that reads it.
        reuses: the key of a block whose interval ends with step `first` and whose memory this one
            is computed in (in place).
    """

    key: Hashable
    size: int
    first: int
    last: int
    reuses: Hashable | None = None


def plan_arena(lifetimes: Sequence[Lifetime]) -> tuple[dict[Hashable, int], int]:
    """Return the offset of each block, and the bytes of the arena.

    Args:
        lifetimes: in the order of `first`.
    """
    offsets: dict[Hashable, int] = {}
    live: list[tuple[int, int, int, Hashable]] = []  # offset, end, last step, key
    total = 0
    for block in lifetimes:
        size = -(-(block.size + _SPARE) // ALIGNMENT) * ALIGNMENT
        if block.reuses is not None:
            index = next(i for i, entry in enumerate(live) if entry[3] == block.reuses)
            offset, end, _, _ = live[index]
            live[index] = offset, end, block.last, block.key
            offsets[block.key] = offset
            continue
        # What was read last by an earlier step is free now.
        live = [entry for entry in live if entry[2] >= block.first]
        best: tuple[int, int] | None = None
        at = 0
        for offset, end, _, _ in sorted(live, key=lambda entry: entry[0]):
            gap = offset - at
            if gap >= size and (best is None or gap < best[0]):
                best = gap, at
            at = max(at, end)
        start = at if best is None else best[1]
        live.append((start, start + size, block.last, block.key))
        offsets[block.key] = start
        total = max(total, start + size)
    return offsets, total
