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
from narrowpass_planning.state.narrow import FLOAT32, NarrowRows, element_dtype, narrow, upcast

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
        stored: type of their elements; see `narrow.CACHE_DTYPES`.

    Attributes:
        arrays: by the state's input; of the elements, as `narrow.NarrowRows` has them.
        scales: of int8 rows, by the state's input; each lies behind its array.
        room: rows that they have room for.
        users: sessions that read them; one that appends rows is alone. Those that are gone do not
            count.
    """

    def __init__(
        self, caches: Mapping[str, Cache], room: int, extra_bytes: int, stored: str = FLOAT32
    ) -> None:
        self.caches = dict(caches)
        self.stored = stored
        self.room = max(LEAST_ROWS, 1 << (room - 1).bit_length() if room > 1 else 1)
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self._extra = extra_bytes
        self.arrays: dict[str, Array] = {}
        self.scales: dict[str, Array] = {}
        for name, cache in self.caches.items():
            self._allocate(name, cache)

    def _allocate(self, name: str, cache: Cache) -> None:
        shape = cache.with_rows(self.room)
        dtype = cache.dtype if self.stored == FLOAT32 else element_dtype(self.stored)
        check_memory(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        scales = math.prod(shape[:-1]) * 4 if self.stored == "int8" else 0
        memory = allocate_bytes(current_allocator(), size + scales + self._extra)
        self.arrays[name] = memory[:size].view(dtype).reshape(shape)
        if scales:
            behind = memory[size : size + scales].view(np.float32)
            self.scales[name] = behind.reshape(shape[:-1])

    def copy(self, rows: int, room: int) -> Buffers:
        """Return other buffers with the first rows of these."""
        other = Buffers(self.caches, room, self._extra, self.stored)
        other.fill_stored({name: self.stored_rows(name, rows) for name in self.arrays}, rows)
        return other

    def fit(self, caches: Mapping[str, Cache]) -> bool:
        """Return whether they are for caches of these shapes, but for the rows."""
        return {name: cache.with_rows(0) for name, cache in caches.items()} == {
            name: cache.with_rows(0) for name, cache in self.caches.items()
        }

    def rows(self, name: str, rows: int) -> Array:
        """Return the first rows of a cache, in the dtype of its state; a view where possible."""
        if self.stored == FLOAT32:
            return self.stored_rows(name, rows).elements
        return upcast(self.stored_rows(name, rows), self.stored)

    def fill(self, values: Mapping[str, Array], rows: int) -> None:
        """Write the first rows of caches, of the dtypes of their states."""
        plain = self.stored == FLOAT32
        self.fill_stored(
            {
                name: NarrowRows(value) if plain else narrow(value, self.stored)
                for name, value in values.items()
            },
            rows,
        )

    def stored_rows(self, name: str, rows: int) -> NarrowRows:
        """Return views of the first rows of a cache."""
        cache, scales = self.caches[name], self.scales.get(name)
        return NarrowRows(
            cache.part(self.arrays[name], rows),
            None if scales is None else cache.part(scales, rows),
        )

    def fill_stored(self, values: Mapping[str, NarrowRows], rows: int) -> None:
        """Write the first rows of caches as they are stored."""
        for name, value in values.items():
            own = self.stored_rows(name, rows)
            np.copyto(own.elements, value.elements)
            if own.scales is not None and value.scales is not None:
                np.copyto(own.scales, value.scales)


def rows_of(states: Sequence[State], values: Mapping[str, Array]) -> int:
    """Return the rows of the states that grow; 0 where there are none."""
    return max(
        (values[s.input].shape[s.axis] for s in states if s.axis is not None and s.input in values),
        default=0,
    )
