"""The weights cache of XNNPACK: the planner's cache, with packed weights in a table of C.

XNNPACK calls an ``xnn_weights_cache_provider`` while it creates an operator. The provider and its
table of blocks are in ``csrc/runtime/weights.c``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import HEAP, Allocator, Array, allocate_bytes
from narrowpass_planning.weights import cache as planning
from narrowpass_planning.weights import session as sessions
from narrowpass_planning.weights.entry import Block, Entry
from narrowpass_planning.weights.store import UNNAMED
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import check_created, extension

Create = Callable[..., int]
"""Calls ``xnn_create_*`` with kernel, bias, provider, pointer to the handle, and other packed
constants such as scales; returns the status."""

_PRIVATE = {3: UNNAMED, 4: "XNNPACK has a private copy of its weights"}
_ORIGINS = {0: "packed", 1: "shared", 2: "mapped", **_PRIVATE}
"""Origin of a block in a session, by its number in C."""


class NativeStore:
    """Blocks in a table of C; see `narrowpass_planning.weights.store.BlockStore`."""

    def __init__(self) -> None:
        ffi, lib = extension().ffi, extension().lib
        self._lib = lib
        self._handle = lib.np_cache_new()
        if self._handle == ffi.NULL:
            raise BackendError("out of memory for a weights cache")
        weakref.finalize(self, lib.np_cache_free, self._handle).atexit = False

    def count(self) -> int:
        """Return how many named blocks committed sessions hold."""
        return int(self._lib.np_cache_count(self._handle))

    def users(self, name: str) -> int:
        """Return how many committed sessions hold blocks of this name."""
        return int(self._lib.np_cache_users(self._handle, bytes.fromhex(name)))

    def has(self, key: Any) -> bool:
        """Return whether committed sessions hold blocks of a name, given as 32 bytes."""
        return bool(self._lib.np_cache_has(self._handle, key))

    def begin(self, allocator: Allocator) -> NativeBlocks:
        """Begin a session."""
        handle = self._lib.np_session_begin(self._handle)
        if handle == extension().ffi.NULL:
            raise BackendError("out of memory for a session of the weights cache")
        return NativeBlocks(self, handle, allocator)


class NativeBlocks:
    """The blocks of a session; see `narrowpass_planning.weights.store.OpenBlocks`.

    Attributes:
        store: the store of all sessions.
        handle: the session in C.
        provider: the ``xnn_weights_cache_t`` for ``xnn_create_*``.
    """

    def __init__(self, store: NativeStore, handle: Any, allocator: Allocator) -> None:
        self._ffi, self._lib = extension().ffi, extension().lib
        self.store, self.handle = store, handle
        self.provider = self._lib.np_session_provider(handle)
        self._allocation = None if allocator is HEAP else _Allocation(allocator)
        if self._allocation is not None:
            self._lib.np_session_allocate_by(handle, self._allocation.functions)

    def offer(self, entry: Entry) -> None:
        """Add a block of a mapped file to the table."""
        item = self._ffi.new("struct np_entry *")
        item.name = bytes.fromhex(entry.name)
        item.seed, item.fingerprint = entry.seed, entry.fingerprint
        item.address = self._ffi.cast("void *", entry.address)
        item.size = entry.size
        if not self._lib.np_session_offer(self.handle, item):
            raise BackendError("out of memory for the index of a weights cache")

    def key(self, name: str) -> Any:
        """Return a name as 32 bytes for C; NULL for constants without a name."""
        return bytes.fromhex(name) if name else self._ffi.NULL

    def find(self, name: str, layout: int, size: int) -> Any:
        """Return the address of a block that our kernels packed; None if there is none."""
        self._next(name)
        block = self._lib.np_session_find_block(self.handle, layout, size)
        return None if block == self._ffi.NULL else block

    def allocate(self, size: int) -> Any:
        """Allocate memory for a block of our kernels; return its address."""
        block = self._lib.np_session_new_block(self.handle, size)
        if block == self._ffi.NULL:
            self.check_allocator()
            raise BackendError(f"out of memory for {size} bytes of packed weights")
        return block

    def check_allocator(self) -> None:
        """Raise the error of the caller's allocator; C saw only that an allocation failed."""
        if self._allocation is not None and self._allocation.errors:
            raise self._allocation.errors.pop()

    def keep(self, name: str, layout: int, block: Any, size: int) -> None:
        """Add a block of our kernels to the session."""
        self._next(name)
        self._lib.np_session_keep_block(self.handle, layout, block, size)

    def _next(self, name: str) -> None:
        self._lib.np_session_next(self.handle, self.handle, self._ffi.NULL, self.key(name), False)

    def operand(self, array: Array | None) -> Any:
        """Return the address of a dense array; NULL for none."""
        return self._ffi.NULL if array is None else pointer(self._ffi, array)

    def __len__(self) -> int:
        return int(self._lib.np_session_count(self.handle))

    def entry(self, index: int) -> Entry:
        """Return a block of the session."""
        ffi = self._ffi
        item = ffi.new("struct np_entry *")
        how = self._lib.np_session_entry(self.handle, index, item)
        return Entry(
            bytes(ffi.buffer(item.name)).hex() if how not in _PRIVATE else "",
            item.seed,
            item.fingerprint,
            int(ffi.cast("uintptr_t", item.address)),
            item.size,
            _ORIGINS[how],
            bool(item.mapped),
        )

    def last(self) -> Block | None:
        """Return the packed weights of the last created operator; None if the session has none."""
        item = self._ffi.new("struct np_entry *")
        if not self._lib.np_session_last(self.handle, item):
            return None
        return Block(item.address, int(item.size))

    def commit(self) -> None:
        """Let operators run, and other sessions find the blocks."""
        self._lib.np_session_commit(self.handle)

    def end(self) -> None:
        """Free the blocks that no other session holds."""
        self._lib.np_session_end(self.handle)


class Session(sessions.Session):
    """A session in which operators of XNNPACK are created with `pack`."""

    blocks: NativeBlocks

    def pack(
        self,
        what: str,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        create: Create,
        others: Sequence[Weight] = (),
    ) -> Any:
        """Create an operator with packed weights from the cache, or pack them.

        Args:
            what: the kind of operator, also for errors.
            parameters: everything beside the constants that determines the packed bytes.
            kernel: the operator's weights.
            bias: the operator's bias, or None; it is part of XNNPACK's own key of the block.
            create: calls ``xnn_create_*``.
            others: other constants that are packed, which XNNPACK's key does not have: scales.

        Returns:
            XNNPACK's handle.

        Raises:
            BackendError: XNNPACK returns an error.
            UsageError: the session is not open.
        """
        self.check_state("open")
        ffi, lib = extension().ffi, extension().lib
        session, provider = self.blocks.handle, self.blocks.provider
        handle, said = ffi.new("xnn_operator_t *"), f"XNNPACK does not create this {what}"
        name = self.name_of(what, parameters, kernel, bias, *others)
        key = self.blocks.key(name)
        if name and (lib.np_session_offers(session, key) or self.blocks.store.has(key)):
            # XNNPACK reads neither kernel nor bias if it finds the packed block.
            nowhere = ffi.new("char[32]")
            first = ffi.cast("void *", nowhere)
            second = ffi.NULL if bias is None else ffi.cast("void *", nowhere + 16)
            rest = [second or first for _ in others]
            lib.np_session_next(session, first, second, key, True)
            status = create(first, second, provider, handle, *rest)
            wanted = lib.np_session_wanted(session)
            if status and wanted:
                # Not packed in this process. The call returned the size, to look it up in the file.
                lib.np_session_expect(session, wanted)
                status = create(first, second, provider, handle, *rest)
            if status == 0:
                check_created(status, handle, said)
                self.counts.hits += 1
                return handle[0]
        start = name or str(id(kernel))
        needed = {
            f"{start}/{index}": weight for index, weight in enumerate((kernel, bias, *others))
        }
        try:
            arrays = [
                None if weight is None else self.load_unpacked(key_, weight)
                for key_, weight in needed.items()
            ]
            first, second, *rest = map(self.blocks.operand, arrays)
            lib.np_session_next(session, first, second, key, False)
            before = len(self.blocks)
            status = create(first, second, provider, handle, *rest)
        finally:
            self.free_unpacked(*needed)
        self.blocks.check_allocator()
        check_created(status, handle, said)
        self.counts.misses += 1
        self.counts.packs += len(self.blocks) - before
        return handle[0]

    def last_block(self) -> Block | None:
        """Return the packed weights of the last created operator; None if the session has none."""
        return self.blocks.last()


class WeightsCache(planning.WeightsCache[Session]):
    """A cache of packed weights, empty at first. `shared` returns that of this process."""

    def __init__(self) -> None:
        super().__init__(NativeStore(), Session)


shared = planning.ProcessCache(WeightsCache).get
"""Returns the weights cache of this process."""


def pointer(ffi: Any, array: Array) -> Any:
    """Return the address of a dense array."""
    # The buffer protocol knows no bfloat16.
    known = array if array.dtype.kind != "V" else array.view(np.uint16)
    return ffi.cast("void *", ffi.from_buffer(known))


class _Allocation:
    """A caller's allocator, callable from C. It lives as long as any of its blocks.

    Attributes:
        functions: a ``struct np_allocator``.
        errors: exceptions that the allocator raised.
    """

    def __init__(self, allocator: Allocator) -> None:
        ffi, lib = extension().ffi, extension().lib
        _register_callbacks()
        self._allocator = allocator
        self.errors: list[BaseException] = []
        self._memory: dict[int, Array] = {}
        self._handle = ffi.new_handle(self)
        functions = lib.np_allocate_in_python, lib.np_release_in_python, self._handle
        self.functions = ffi.new("struct np_allocator *", functions)

    def allocate(self, size: int, alignment: int) -> Any:
        """Allocate bytes; return their address."""
        memory = allocate_bytes(self._allocator, size, alignment)
        address = int(memory.ctypes.data)
        self._memory[address] = memory
        _in_use.add(self)
        return extension().ffi.cast("void *", address)

    def release(self, address: int) -> None:
        """Release bytes."""
        del self._memory[address]
        if not self._memory:
            _in_use.discard(self)


_in_use: set[_Allocation] = set()
"""Allocators with live blocks: C refers to them, so that they must not be collected."""


@functools.cache
def _register_callbacks() -> None:
    """Register the callbacks of C; where an allocator raises, C gets NULL."""
    ffi = extension().ffi

    def allocate(context: Any, size: int, alignment: int) -> Any:
        found: _Allocation = ffi.from_handle(context)
        return found.allocate(size, alignment)

    def release(context: Any, address: Any) -> None:
        found: _Allocation = ffi.from_handle(context)
        found.release(int(ffi.cast("uintptr_t", address)))

    def raised(kind: type[BaseException], error: BaseException, traceback: TracebackType) -> None:
        found: _Allocation = ffi.from_handle(traceback.tb_frame.f_locals["context"])
        found.errors.append(error)

    ffi.def_extern(name="np_allocate_in_python", error=ffi.NULL, onerror=raised)(allocate)
    ffi.def_extern(name="np_release_in_python")(release)
