"""Allocators of packed weights and workspaces: the heap, or one that a caller supplies.

A caller that wants huge pages, memory of one NUMA node or memory shared between processes passes an
`Allocator` to `allocating` while it compiles::

    with allocating(HugePages()):
        program = narrowpass.load("model.narrow")

What is compiled within the block takes packed weights and workspaces from it, for as long as the
program lives.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from narrowpass.errors import BackendError

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes of a cache line; blocks of an arena start at multiples of it."""


class Allocator(Protocol):
    """Memory for packed weights and workspaces; any thread may call it."""

    def allocate(self, size: int, alignment: int) -> Array:
        """Return fresh, writable bytes.

        Args:
            size: bytes, at least 1.
            alignment: the address of the first byte is a multiple of it; a power of 2, at most 128.

        Returns:
            A dense array of so many uint8. Its memory is in use until the array and all views of it
            are gone; what frees it belongs to the array's base, such as an ``mmap.mmap``.

        Raises:
            MemoryError: it has not as many.
        """


class HeapAllocator:
    """The default: memory of the process's heap."""

    def allocate(self, size: int, alignment: int) -> Array:
        """Return fresh bytes; see `Allocator.allocate`."""
        raw = np.empty(size + alignment, np.uint8)
        start = -raw.ctypes.data % alignment
        return raw[start : start + size]


HEAP = HeapAllocator()
_current: contextvars.ContextVar[Allocator] = contextvars.ContextVar("allocator", default=HEAP)


@contextlib.contextmanager
def allocating(allocator: Allocator) -> Iterator[None]:
    """Allocate what this thread compiles within the block from `allocator`.

    It serves packed weights that are not in the process's cache yet, and workspaces of programs.
    """
    token = _current.set(allocator)
    try:
        yield
    finally:
        _current.reset(token)


def current_allocator() -> Allocator:
    """Return the allocator of this thread: that of the innermost `allocating`, or the heap."""
    return _current.get()


def allocate_bytes(allocator: Allocator, size: int, alignment: int = ALIGNMENT) -> Array:
    """Return uint8[size] of an allocator, and check that the memory is as requested.

    Raises:
        BackendError: more bytes than the machine has, or the allocator has; or what it returned is
            not what `Allocator.allocate` says.
    """
    check_memory((size,), np.dtype(np.uint8))
    name = type(allocator).__name__
    try:
        memory = allocator.allocate(size, alignment)
    except MemoryError as error:
        raise BackendError(f"the allocator {name} has no {size} bytes: {error}") from error
    if (memory.dtype, memory.shape) != (np.uint8, (size,)):
        raise BackendError(f"the allocator {name} did not return uint8[{size}]")
    flags = memory.flags
    if not flags.c_contiguous or not flags.writeable or memory.ctypes.data % alignment:
        raise BackendError(
            f"the allocator {name} must return dense, writable bytes at a multiple of {alignment}"
        )
    return memory


def allocate(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return a fresh array of the heap, its elements undefined.

    Raises:
        BackendError: more bytes than the machine has. Others would be granted, and the process be
            killed when it writes to them.
    """
    check_memory(shape, dtype)
    return np.empty(tuple(shape), dtype)


def check_memory(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise where an array is larger than the machine's memory; see `allocate`."""
    size = math.prod(shape) * dtype.itemsize
    if size > _physical_memory():
        raise BackendError(f"{size / 1e9:.1f} GB are needed; this machine has not that much memory")


@functools.cache
def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
