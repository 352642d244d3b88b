"""Buffers of caches, with room for rows to come; sessions that were forked share them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass_ir.state import State
from narrowpass_planning.memory.allocator import allocate_bytes, check_memory, current_allocator
from narrowpass_planning.plan.step import Array, Shape

LEAST_ROWS = 256
"""Rows of a buffer, at least."""


@dataclass(frozen=True)
class Cache:
    """The rows of one state.

    Attributes:
        state: whose value it is.
        shape: of the value, with any number of rows.
        dtype: of its elements.
    """

    state: State
    shape: Shape
    dtype: np.dtype[np.generic]

    def with_rows(self, rows: int) -> Shape:
        """Return the shape with a number of rows."""
        axis = self.state.axis or 0
        return (*self.shape[:axis], rows, *self.shape[axis + 1 :])

    def part(self, array: Array, rows: int) -> Array:
        """Return a view of the first rows of an array."""
        return array[(slice(None),) * (self.state.axis or 0) + (slice(rows),)]


class Buffers:
    """One buffer for each cache, all with room for the same number of rows.

    Args:
        caches: by the state's input.
        room: rows that they must have room for; they get a power of 2.
        extra_bytes: that kernels may read behind a buffer.

    Attributes:
        arrays: by the state's input.
        room: rows that they have room for.
        users: sessions that read them; one that appends rows is alone. Those that are gone do not
            count.
    """

    def __init__(self, caches: Mapping[str, Cache], room: int, extra_bytes: int) -> None:
        self.caches = dict(caches)
        self.room = max(LEAST_ROWS, 1 << (room - 1).bit_length() if room > 1 else 1)
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self._extra = extra_bytes
        self.arrays = {name: self._allocate(cache) for name, cache in self.caches.items()}

    def _allocate(self, cache: Cache) -> Array:
        shape = cache.with_rows(self.room)
        check_memory(shape, cache.dtype)
        size = math.prod(shape) * cache.dtype.itemsize
        memory = allocate_bytes(current_allocator(), size + self._extra)
        found: Array = memory[:size].view(cache.dtype).reshape(shape)
        return found

    def copy(self, rows: int, room: int) -> Buffers:
        """Return other buffers with the first rows of these."""
        other = Buffers(self.caches, room, self._extra)
        other.fill({name: self.rows(name, rows) for name in self.arrays}, rows)
        return other

    def fit(self, caches: Mapping[str, Cache]) -> bool:
        """Return whether they are for caches of these shapes, but for the rows."""
        return {name: cache.with_rows(0) for name, cache in caches.items()} == {
            name: cache.with_rows(0) for name, cache in self.caches.items()
        }

    def rows(self, name: str, rows: int) -> Array:
        """Return a view of the first rows of a cache."""
        return self.caches[name].part(self.arrays[name], rows)

    def fill(self, values: Mapping[str, Array], rows: int) -> None:
        """Write the first rows of caches."""
        for name, value in values.items():
            np.copyto(self.rows(name, rows), value)


def rows_of(states: Sequence[State], values: Mapping[str, Array]) -> int:
    """Return the rows of the states that grow; 0 where there are none."""
    return max(
        (values[s.input].shape[s.axis] for s in states if s.axis is not None and s.input in values),
        default=0,
    )
