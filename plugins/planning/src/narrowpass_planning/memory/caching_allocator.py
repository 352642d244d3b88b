"""A caching allocator of outputs: memory that no array refers to serves later runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.memory.allocator import ALIGNMENT, allocate

SMALL = 1 << 15
"""Bytes below which malloc returns memory that is in the page tables."""
_SPARE = 8
"""A block has 1 / `_SPARE` extra bytes, so that a KV cache fits after a row is appended."""
_IDLE = 4
"""Runs after which a block that was not reused is freed."""

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Block:
    memory: Array
    room: int
    run: int
    start: int
    address: Any


class CachingAllocator:
    """Allocates output arrays in blocks of earlier ones that have no references any more.

    Fresh memory costs more than most kernels that write to it: the system clears each page on the
    first touch, and unmaps it when the array is freed. Every array, and every view of one, refers
    to its block, so a block without other references is free. Blocks that several runs did not
    reuse are freed. It is not thread-safe.

    Args:
        address_of: `Executor.address_of`.
    """

    def __init__(self, address_of: Callable[[Array, int], Any]) -> None:
        self._address_of = address_of
        self._blocks: list[_Block] = []
        self._free: dict[int, list[_Block]] = {}
        self._run = 0

    def begin(self) -> None:
        """Begin a run: blocks that are free now may serve it."""
        self._run += 1
        if not self._blocks:
            return
        oldest = self._run - _IDLE
        free = [block for block in self._blocks if _is_free(block)]
        if any(block.run < oldest for block in free):
            self._blocks = [
                block for block in self._blocks if block.run >= oldest or not _is_free(block)
            ]
            free = [block for block in free if block.run >= oldest]
        self._free = {}
        for block in free:
            self._free.setdefault(block.room, []).append(block)

    def take(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array, its elements undefined.

        Raises:
            BackendError: more bytes than the machine has.
        """
        return self.take_at(shape, dtype, math.prod(shape) * dtype.itemsize)[0]

    def take_at(self, shape: Sequence[int], dtype: np.dtype[Any], size: int) -> tuple[Array, Any]:
        """Return an array of `size` bytes and its address; see `take`.

        The address is None for small arrays, which are not cached.
        """
        if size < SMALL:
            return np.empty(shape, dtype), None
        best = self._best(size)
        if best is None:
            whole = size + size // _SPARE
            memory = allocate((whole + ALIGNMENT,), np.dtype(np.uint8))
            # Arrays start at a cache line. They must not be views of views, which have other bases.
            start = -memory.ctypes.data % ALIGNMENT
            best = _Block(memory, whole, self._run, start, self._address_of(memory, start))
            self._blocks.append(best)
        best.run = self._run
        return np.ndarray(shape, dtype, best.memory, best.start), best.address

    def _best(self, size: int) -> _Block | None:
        """Return the smallest free block of at least `size` bytes and at most twice as many."""
        room = size
        if size not in self._free:
            room = min([room for room in self._free if size <= room <= 2 * size], default=0)
        blocks = self._free.get(room)
        if blocks is None:
            return None
        found = blocks.pop()
        if not blocks:
            del self._free[room]
        return found

    @property
    def size(self) -> int:
        """Bytes of all blocks, in use or not."""
        return sum(block.room for block in self._blocks)


def _is_free(block: _Block) -> bool:
    # The block's own reference, and that of the call.
    return sys.getrefcount(block.memory) == 2
