"""Sessions of a weights cache: the packed blocks that one program holds."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from narrowpass.errors import UsageError
from narrowpass_ir.arguments import Uncopied, suggest
from narrowpass_ir.io import MappedTensor
from narrowpass_planning.weights.entry import Entry
from narrowpass_planning.weights.store import OpenBlocks, names_of
from narrowpass_planning.weights.weight import Array, Weight, digest

if TYPE_CHECKING:
    from narrowpass.bundle import NamedData


@dataclass
class Counts:
    """Cache statistics of a session.

    Attributes:
        hits: operators whose weights were in the cache, in memory or in a file.
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
    """The blocks of one program: the session is open, then committed or aborted, then released.

    While it is open, weights are packed by `pack_own`. After the commit, kernels may read the
    blocks, and other sessions share them. Operators keep their session alive, and with it the
    blocks.

    Args:
        blocks: those of this session.
        mappings: of the cache: files that blocks lie in.
        turn: a lock, released when the session is closed.
        data: the named data of a bundle.

    Attributes:
        blocks: those of this session.
        counts: its cache statistics.
        label: under which `packed_for` lists blocks that are packed or found from now on.
    """

    _instead = "programs that are compiled again share it"

    def __init__(
        self,
        blocks: OpenBlocks,
        mappings: weakref.WeakSet[Any],
        turn: threading.Lock,
        data: Mapping[str, NamedData],
    ) -> None:
        self.blocks = blocks
        self._turn = turn
        self._state = "open"
        # Blocks that others mapped must stay where they are for as long as they are used here.
        self._all_mappings = mappings
        self._mappings = list(mappings)
        self._end = weakref.finalize(self, _end, blocks, os.getpid())
        self._end.atexit = False
        self._raw = _Raw()
        self._data = data
        self.counts = Counts()
        self.label = ""
        self._labels: dict[str, set[str]] = {}

    def offer(self, entries: Iterable[Entry], mapping: Any) -> None:
        """Let this session find blocks of a mapped file, which it keeps mapped.

        Raises:
            UsageError: the session is not open.
        """
        self.check_state("open")
        self._mappings.append(mapping)
        self._all_mappings.add(mapping)
        for entry in entries:
            self.blocks.offer(entry)

    def name_of(
        self,
        what: str,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        *others: Weight | None,
    ) -> str:
        """Return the name of an operator's packed weights, and count it under the label."""
        name = packed_name(what, parameters, kernel, bias, *others)
        if name:
            self._labels.setdefault(self.label, set()).add(name)
        return name

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
        """Return a block in a layout of the backend's own; it lives as long as the session.

        Args:
            what: the kind of kernel.
            parameters: all that determines the packed bytes beside the weights and the layout.
            kernel: weights of a matmul or convolution.
            bias: initial values of the accumulators, or None.
            scales: of the accumulators, or None.
            layout: version of the packed layout.
            size: bytes of the block.
            write: packs into a block: called with the block and kernel, bias and scales, each as
                the store's `OpenBlocks.operand` returns it.

        Returns:
            The block, as the store's `OpenBlocks.find` returns it.

        Raises:
            BackendError: there is no memory for it.
            UsageError: the session is not open.
        """
        self.check_state("open")
        blocks = self.blocks
        name = self.name_of(what, parameters, kernel, bias, scales)
        block = blocks.find(name, layout, size)
        if block is not None:
            self.counts.hits += 1
            return block
        needed = {f"{name or id(kernel)}/{i}": w for i, w in enumerate((kernel, bias, scales))}
        try:
            arrays = [
                None if weight is None else self.load_unpacked(key, weight)
                for key, weight in needed.items()
            ]
            block = blocks.allocate(size)
            write(block, *map(blocks.operand, arrays))
            blocks.keep(name, layout, block, size)
        finally:
            self.free_unpacked(*needed)
        self.counts.misses += 1
        self.counts.packs += 1
        return block

    def load_unpacked(self, name: str, weight: Weight | None = None) -> Array:
        """Compute the elements of a weight, and keep them until `free_unpacked`.

        Args:
            name: under which they are kept.
            weight: to compute; None for the bundle's named data.

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
        """Free the elements of weights and of their sources; those of all weights without names."""
        for name in names or list(self._raw.arrays):
            if self._raw.arrays.pop(name, None) is not None:
                self._raw.sources.pop(name).drop()

    def _named(self, name: str) -> Weight:
        if name not in self._data:
            raise UsageError(f"no data {name!r}{suggest(name, self._data)}")
        item = self._data[name]
        drop = getattr(item.tensor, "drop", None)
        tensor = item.tensor
        compute = tensor.checked if isinstance(tensor, MappedTensor) else tensor.numpy
        weight = Weight(item.shape, item.dtype.numpy(), item.sha256 or "", compute)
        return weight if drop is None else dataclasses.replace(weight, drop=drop)

    @property
    def unpacked_names(self) -> list[str]:
        """The weights that `load_unpacked` holds."""
        return list(self._raw.arrays)

    @property
    def packed_names(self) -> list[str]:
        """The names of the blocks that this session holds, each once."""
        return names_of(list(self.entries()))

    def entries(self) -> Iterator[Entry]:
        """Yield the blocks that this session holds.

        Raises:
            UsageError: the session was aborted or released.
        """
        self.check_state("open", "committed")
        yield from map(self.blocks.entry, range(len(self.blocks)))

    def packed_for(self, label: str) -> frozenset[str]:
        """Return the names of the blocks that were packed or found under a label."""
        return frozenset(self._labels.get(label, ()))

    def commit(self) -> None:
        """Close the session: operators may run, and other sessions share its blocks.

        Raises:
            UsageError: the session is not open.
        """
        self.check_state("open")
        self.free_unpacked()
        self.blocks.commit()
        self._state = "committed"
        self._turn.release()

    def abort(self) -> None:
        """Close the session, and free its blocks. Its operators must not be used any more.

        Raises:
            UsageError: the session is not open.
        """
        self.check_state("open")
        self.free_unpacked()
        self._state = "released"
        self._end()
        self._turn.release()

    def release(self) -> None:
        """Release the session's blocks; those that no other session holds are freed.

        No operator of it may be left. A program releases with its last operator.

        Raises:
            UsageError: the session is not committed, or was released before.
        """
        self.check_state("committed")
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

    def check_state(self, *states: str) -> None:
        """Raise `UsageError` unless the session is in one of these states."""
        if self._state not in states:
            raise UsageError(
                f"this session of the weights cache is {self._state}, not {' or '.join(states)}"
            )


def _end(blocks: OpenBlocks, process: int) -> None:
    # In a forked child, a thread that was left behind may hold the cache's lock for ever.
    if process == os.getpid():
        blocks.end()


def packed_name(
    what: str, parameters: object, kernel: Weight, bias: Weight | None, *others: Weight | None
) -> str:
    """Return the content name of an operator's packed weights; empty where one has no name."""
    if any(weight is not None and not weight.identity for weight in (kernel, bias, *others)):
        return ""
    parts = [what, parameters]
    for weight in (kernel, bias, *others):
        parts += ["" if weight is None else (weight.identity, weight.shape, weight.dtype.name)]
    return digest(*parts)
