"""One program's use of a weights cache."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowpass.errors import BackendError, UsageError
from narrowpass.framework.arguments import Uncopied
from narrowpass.framework.options import suggest
from narrowpass.ir.io import MappedTensor
from narrowpass_xnn_cpu.native.library import check, extension
from narrowpass_xnn_cpu.weights.entry import ORIGINS, PRIVATE, Block, Entry
from narrowpass_xnn_cpu.weights.weight import Array, Weight, digest

if TYPE_CHECKING:
    from narrowpass.bundle import NamedData
    from narrowpass_xnn_cpu.weights.cache import WeightsCache

Create = Callable[..., int]
"""Calls ``xnn_create_*`` with kernel, bias, weights cache, where the operator goes, and the rest of
what is packed."""


@dataclass
class Counts:
    """What a session did.

    Attributes:
        hits: operators whose weights were there already, in memory or in a file.
        misses: operators whose weights had to be packed.
        packs: blocks that were packed.
    """

    hits: int = 0
    misses: int = 0
    packs: int = 0


@dataclass
class _Raw:
    """Weights that were loaded and are not freed yet."""

    arrays: dict[str, Array] = field(default_factory=dict)
    sources: dict[str, Weight] = field(default_factory=dict)


class Session(Uncopied):
    """One program's use of a cache: open, then committed or aborted, then released.

    While it is open, operators are created with `pack`; they run once it is committed. Entries
    are counted by others only from the commit on. Operators keep their session, so that blocks
    live as long as what reads them.
    """

    _instead = "programs that are compiled again share it"

    def __init__(
        self, cache: WeightsCache, turn: threading.Lock, data: Mapping[str, NamedData]
    ) -> None:
        ffi, lib = extension().ffi, extension().lib
        self._ffi, self._lib, self._cache = ffi, lib, cache
        handle = lib.np_session_begin(cache.handle)
        if handle == ffi.NULL:
            raise BackendError("out of memory for a session of the weights cache")
        self._handle = handle
        self._turn = turn
        self._state = "open"
        # Blocks that others mapped must stay where they are for as long as they are used here.
        self._mappings = list(cache.mappings)
        self._end = weakref.finalize(self, _end, lib, handle, cache, os.getpid())
        self._end.atexit = False
        self._raw = _Raw()
        self._data = data
        self.counts = Counts()
        self.label = ""
        self._labels: dict[str, set[str]] = {}

    def offer(self, entries: Iterable[Entry], mapping: Any) -> None:
        """Say which blocks lie in `mapping`, which this session then keeps.

        Raises:
            UsageError: the session is not open.
        """
        self._check("open")
        self._mappings.append(mapping)
        self._cache.mappings.add(mapping)
        for entry in entries:
            item = self._ffi.new("struct np_entry *")
            item.name = bytes.fromhex(entry.name)
            item.seed, item.fingerprint = entry.seed, entry.fingerprint
            item.address = self._ffi.cast("void *", entry.address)
            item.size = entry.size
            if not self._lib.np_session_offer(self._handle, item):
                raise BackendError("out of memory for the index of a weights cache")

    def pack(
        self,
        what: str,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        create: Create,
        others: Sequence[Weight] = (),
    ) -> Any:
        """Create an operator, with weights that are there already or are packed now.

        Args:
            what: the kind of operator; names it in errors.
            parameters: all that the packed bytes follow from beside kernel and bias.
            kernel: of the operator.
            bias: of the operator, or None; what XNNPACK's key of the block has as such.
            create: calls XNNPACK.
            others: what is packed too, and not in XNNPACK's key: scales.

        Returns:
            XNNPACK's handle.

        Raises:
            BackendError: XNNPACK refuses.
            UsageError: the session is not open.
        """
        self._check("open")
        ffi, lib = self._ffi, self._lib
        provider = lib.np_session_provider(self._handle)
        handle = ffi.new("xnn_operator_t *")
        name = packed_name(what, parameters, kernel, bias, *others)
        if name:
            self._labels.setdefault(self.label, set()).add(name)
        key = bytes.fromhex(name) if name else ffi.NULL
        if name and (
            lib.np_session_offers(self._handle, key) or lib.np_cache_has(self._cache.handle, key)
        ):
            # Neither is read where the packed form is found.
            nowhere = ffi.new("char[32]")
            first = ffi.cast("void *", nowhere)
            second = ffi.NULL if bias is None else ffi.cast("void *", nowhere + 16)
            rest = [second or first for _ in others]
            lib.np_session_next(self._handle, first, second, key, True)
            status = create(first, second, provider, handle, *rest)
            wanted = lib.np_session_wanted(self._handle)
            if status and wanted:
                # Not packed in this process. Now that its size is known: is it in the file?
                lib.np_session_expect(self._handle, wanted)
                status = create(first, second, provider, handle, *rest)
            if status == 0:
                self.counts.hits += 1
                return handle[0]
        start = name or str(id(kernel))
        needed = {
            f"{start}/{index}": weight for index, weight in enumerate((kernel, bias, *others))
        }
        try:
            first, second, *rest = (
                ffi.NULL if weight is None else pointer(ffi, self.load_unpacked(key_, weight))
                for key_, weight in needed.items()
            )
            lib.np_session_next(self._handle, first, second, key, False)
            before = lib.np_session_count(self._handle)
            status = create(first, second, provider, handle, *rest)
        finally:
            self.free_unpacked(*needed)
        check(status, f"XNNPACK does not create this {what}")
        made = lib.np_session_count(self._handle) - before
        self.counts.misses += 1
        self.counts.packs += made
        return handle[0]

    def pack_own(
        self,
        what: str,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        scales: Weight | None,
        layout: int,
        size: int,
        write: Callable[..., None],
    ) -> Any:
        """Give the address of a block for kernels of ours; it lies there as long as the session.

        Args:
            what: the kind of kernel.
            parameters: all that the packed bytes follow from beside the weights and the layout.
            kernel: what inputs are multiplied with.
            bias: what is added to sums, or None.
            scales: of sums, or None.
            layout: the version of how bytes lie.
            size: bytes of the block.
            write: fills a block: called with its address, and those of kernel, bias and scales.

        Raises:
            BackendError: there is no memory for it.
            UsageError: the session is not open.
        """
        self._check("open")
        ffi, lib = self._ffi, self._lib
        name = packed_name(what, parameters, kernel, bias, scales)
        if name:
            self._labels.setdefault(self.label, set()).add(name)
        key = bytes.fromhex(name) if name else ffi.NULL
        lib.np_session_next(self._handle, self._handle, ffi.NULL, key, False)
        block = lib.np_session_find_block(self._handle, layout, size)
        if block != ffi.NULL:
            self.counts.hits += 1
            return block
        needed = {f"{name or id(kernel)}/{i}": w for i, w in enumerate((kernel, bias, scales))}
        try:
            given = [
                ffi.NULL if weight is None else pointer(ffi, self.load_unpacked(key_, weight))
                for key_, weight in needed.items()
            ]
            block = lib.np_session_new_block(self._handle, size)
            if block == ffi.NULL:
                raise BackendError(f"out of memory for {size} bytes of packed weights")
            write(block, *given)
            lib.np_session_keep_block(self._handle, layout, block, size)
        finally:
            self.free_unpacked(*needed)
        self.counts.misses += 1
        self.counts.packs += 1
        return block

    def last_block(self) -> Block | None:
        """Give the weights of the operator that was created last; None where it has none here."""
        item = self._ffi.new("struct np_entry *")
        if not self._lib.np_session_last(self._handle, item):
            return None
        return Block(item.address, int(item.size))

    def load_unpacked(self, name: str, weight: Weight | None = None) -> Array:
        """Make the elements of a weight, and hold them until `free_unpacked`.

        Args:
            name: what it is held as.
            weight: how it is made; None for the bundle's data of that name.

        Raises:
            UsageError: the bundle has no such data.
        """
        array = self._raw.arrays.get(name)
        if array is None:
            weight = self._named(name) if weight is None else weight
            array = self._raw.arrays[name] = weight.array()
            self._raw.sources[name] = weight
        return array

    def free_unpacked(self, *names: str) -> None:
        """Let go of the elements of weights, and of what they were made from; all without names."""
        for name in names or list(self._raw.arrays):
            if self._raw.arrays.pop(name, None) is not None:
                self._raw.sources.pop(name).drop()

    def _named(self, name: str) -> Weight:
        if name not in self._data:
            raise UsageError(f"no data {name!r}{suggest(name, self._data)}")
        item = self._data[name]
        drop = getattr(item.tensor, "drop", None)
        make = item.tensor.checked if isinstance(item.tensor, MappedTensor) else item.tensor.numpy
        made = Weight(item.shape, item.dtype.numpy(), item.sha256 or "", make)
        return made if drop is None else dataclasses.replace(made, drop=drop)

    @property
    def unpacked_names(self) -> list[str]:
        """The weights that `load_unpacked` holds."""
        return list(self._raw.arrays)

    @property
    def packed_names(self) -> list[str]:
        """The names of the blocks that this session holds, each once."""
        return list(dict.fromkeys(entry.name for entry in self.entries() if entry.name))

    def entries(self) -> Iterator[Entry]:
        """Give the blocks that this session holds."""
        self._check("open", "committed")
        ffi, lib = self._ffi, self._lib
        item = ffi.new("struct np_entry *")
        for index in range(lib.np_session_count(self._handle)):
            how = lib.np_session_entry(self._handle, index, item)
            yield Entry(
                bytes(ffi.buffer(item.name)).hex() if how not in PRIVATE else "",
                item.seed,
                item.fingerprint,
                int(ffi.cast("uintptr_t", item.address)),
                item.size,
                ORIGINS[how],
                bool(item.mapped),
            )

    def sizes(self) -> dict[str, int]:
        """Give the bytes of the blocks that were asked for, by the label that was set then."""
        known: Counter[str] = Counter()
        for entry in self.entries():
            known[entry.name] += entry.size
        return {label: sum(known[name] for name in found) for label, found in self._labels.items()}

    def commit(self) -> None:
        """Close the session: operators may run, and others find its blocks.

        Raises:
            UsageError: the session is not open.
        """
        self._check("open")
        self.free_unpacked()
        self._lib.np_session_commit(self._handle)
        self._state = "committed"
        self._turn.release()

    def abort(self) -> None:
        """Close the session, and leave no trace of it. Its operators must not be used any more.

        Raises:
            UsageError: the session is not open.
        """
        self._check("open")
        self.free_unpacked()
        self._state = "released"
        self._end()
        self._turn.release()

    def release(self) -> None:
        """Give up the session's blocks; those that nobody else holds are freed.

        No operator of it may be left. A program leaves this to the end of its last operator.

        Raises:
            UsageError: the session is not committed, or was released before.
        """
        self._check("committed")
        self._state = "released"
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._state == "open":
            if kind is None:
                self.commit()
            else:
                self.abort()

    def _check(self, *states: str) -> None:
        if self._state not in states:
            raise UsageError(
                f"this session of the weights cache is {self._state}, not {' or '.join(states)}"
            )


def _end(lib: Any, handle: Any, cache: WeightsCache, process: int) -> None:
    # In a forked child, a thread that was left behind may hold the cache's lock for ever.
    if process == os.getpid():
        lib.np_session_end(handle)


def packed_name(
    what: str, parameters: object, kernel: Weight, bias: Weight | None, *others: Weight | None
) -> str:
    """Name what an operator packs; empty where a content has no name."""
    if any(weight is not None and not weight.identity for weight in (kernel, bias, *others)):
        return ""
    parts = [what, parameters]
    for weight in (kernel, bias, *others):
        parts += ["" if weight is None else (weight.identity, weight.shape, weight.dtype.name)]
    return digest(*parts)


def pointer(ffi: Any, array: Array) -> Any:
    """Give the address of a dense array."""
    # The buffer protocol knows no bfloat16.
    known = array if array.dtype.kind != "V" else array.view(np.uint16)
    return ffi.cast("void *", ffi.from_buffer(known))
