"""Storage of packed blocks: the protocols, and a store in an allocator's memory."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from narrowpass_planning.memory.allocator import HEAP, Allocator, allocate_bytes
from narrowpass_planning.weights.entry import ALIGNMENT, Entry

Array = np.ndarray[Any, Any]

OWN_ALGORITHM = 0xFFFFFFFF
"""`Entry.fingerprint` of blocks in a layout of the backend's own, whose version is the seed."""

UNNAMED = "its content has no name"


class BlockStore(Protocol):
    """Blocks of packed weights by name, for all sessions of a cache. Any thread may call it."""

    def count(self) -> int:
        """Return how many named blocks committed sessions hold."""

    def users(self, name: str) -> int:
        """Return how many committed sessions hold blocks of this name."""

    def begin(self, allocator: Allocator) -> OpenBlocks:
        """Begin a session; the caller has ended the one before, or committed it."""


class OpenBlocks(Protocol):
    """The blocks of one session: those that it packed, found, or mapped."""

    def offer(self, entry: Entry) -> None:
        """Add a block of a mapped file to those that `find` may return.

        Raises:
            BackendError: out of memory.
        """

    def find(self, name: str, layout: int, size: int) -> Any:
        """Return the block of this name, layout and size; None where there is none.

        The session holds it from then on. `name` is empty for content without a name.
        """

    def allocate(self, size: int) -> Any:
        """Return memory for a block, to be packed into and then passed to `keep`.

        Raises:
            BackendError: out of memory.
        """

    def keep(self, name: str, layout: int, block: Any, size: int) -> None:
        """Add the block that `allocate` returned last to the session."""

    def operand(self, array: Array | None) -> Any:
        """Return an array as packing functions take it; the caller keeps the array alive."""

    def __len__(self) -> int: ...

    def entry(self, index: int) -> Entry:
        """Return a block of the session."""

    def commit(self) -> None:
        """Share the blocks with other sessions."""

    def end(self) -> None:
        """Free the blocks that no other session holds; before a commit, this is an abort."""


@dataclass(eq=False)
class _Block:
    entry: Entry
    memory: Array
    users: int = 0


Key = tuple[str, int, int]


@dataclass(eq=False)
class ArrayStore:
    """A store of numpy arrays, for kernels that are called from Python.

    `OpenBlocks.find` and `allocate` return uint8 arrays, and packing functions get arrays.
    """

    _blocks: dict[Key, _Block] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self) -> int:
        """Return how many named blocks committed sessions hold."""
        return len(self._blocks)

    def users(self, name: str) -> int:
        """Return how many committed sessions hold blocks of this name."""
        with self._lock:
            return sum(block.users for key, block in self._blocks.items() if key[0] == name)

    def begin(self, allocator: Allocator = HEAP) -> ArrayBlocks:
        """Begin a session, whose new blocks lie in memory of `allocator`."""
        return ArrayBlocks(self._blocks, self._lock, allocator)


class ArrayBlocks:
    """The blocks of one session of an `ArrayStore`."""

    def __init__(
        self, shared: dict[Key, _Block], lock: threading.Lock, allocator: Allocator
    ) -> None:
        self._shared, self._lock, self._allocator = shared, lock, allocator
        self._offers: dict[Key, Entry] = {}
        self._held: list[_Block] = []
        self._counted: list[_Block] = []

    def offer(self, entry: Entry) -> None:
        """Add a block of a mapped file to those that `find` may return."""
        self._offers[entry.name, entry.seed, entry.size] = entry

    def find(self, name: str, layout: int, size: int) -> Array | None:
        """Return the bytes of a block, which the session then holds; None where there is none."""
        if not name:
            return None
        key = name, layout, size
        held = next((block for block in self._held if _key(block) == key), None)
        if held is not None:
            return held.memory
        with self._lock:
            block = self._shared.get(key)
            if block is not None:
                block.users += 1
                self._counted.append(block)
                shared = dataclasses.replace(block.entry, origin="shared")
                self._held.append(_Block(shared, block.memory))
                return block.memory
        offered = self._offers.get(key)
        if offered is None:
            return None
        view = _bytes_at(offered)
        self._held.append(_Block(offered, view))
        return view

    def allocate(self, size: int) -> Array:
        """Return memory for a block.

        Raises:
            BackendError: the allocator has not as much.
        """
        return allocate_bytes(self._allocator, max(1, size), ALIGNMENT)[:size]

    def keep(self, name: str, layout: int, block: Array, size: int) -> None:
        """Take a block into the session."""
        origin = "packed" if name else UNNAMED
        entry = Entry(name, layout, OWN_ALGORITHM, block.ctypes.data, size, origin)
        self._held.append(_Block(entry, block))

    def operand(self, array: Array | None) -> Array | None:
        """Return the array itself."""
        return array

    def __len__(self) -> int:
        return len(self._held)

    def entry(self, index: int) -> Entry:
        """Return a block of the session."""
        return self._held[index].entry

    def commit(self) -> None:
        """Share the blocks with other sessions."""
        with self._lock:
            for block in self._held:
                if block.entry.name and block.entry.origin != "shared":
                    block.users = 1
                    self._shared[_key(block)] = block
                    self._counted.append(block)
        self._offers.clear()

    def end(self) -> None:
        """Free the blocks that no other session holds."""
        with self._lock:
            for block in self._counted:
                block.users -= 1
                if not block.users:
                    del self._shared[_key(block)]
        self._held, self._counted = [], []


def _key(block: _Block) -> Key:
    return block.entry.name, block.entry.seed, block.entry.size


def _bytes_at(entry: Entry) -> Array:
    """Return the bytes of a mapped block; the array keeps the file mapped."""
    raw = (ctypes.c_ubyte * entry.size).from_address(entry.address)
    raw.owner = entry.owner  # type: ignore[attr-defined]  # for as long as a view of it lives
    return np.ctypeslib.as_array(raw)


def names_of(entries: Sequence[Entry]) -> list[str]:
    """Return the names of blocks, each once, in order."""
    return list(dict.fromkeys(entry.name for entry in entries if entry.name))
