"""Protocols that a backend implements to execute sized steps: `Executor` and `Tape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Pool(Protocol):
    """The threads of an executor."""

    @property
    def threads(self) -> int:
        """How many compute, the calling one included."""


@dataclass(frozen=True)
class Entry:
    """One kernel call of a tape.

    Attributes:
        call: the kernel that the executor calls; of the step's `Run`.
        inputs: buffer numbers.
        output: a buffer number.
        operator: of the step's `Run`.
        params: of the step's `Run`.
        moving: whether the address of a buffer may change between runs: inputs and outputs.
        name: of the node, for errors.
        alone: whether the calling thread runs it without the pool; see `Executor.runs_alone`.
    """

    call: str
    inputs: tuple[int, ...]
    output: int
    operator: Any
    params: Any
    moving: bool
    name: str
    alone: bool = False


@dataclass(frozen=True)
class NativeCall:
    """A tape as code in C runs it, without Python.

    Attributes:
        run: the address of a function, ``int run(void *argument)``; it returns 0, or the status of
            a step that failed.
        argument: the address that it is called with.
        buffers: the address of the array with the addresses of the tape's buffers.
        extra_bytes: that kernels may read after a buffer.
        process: whose threads it runs on; a forked child has none of them.
        kept: what lives as long as the addresses are used.
    """

    run: int
    argument: int
    buffers: int
    extra_bytes: int
    process: int
    kept: tuple[Any, ...]


class Tape(Protocol):
    """A sequence of kernel calls over numbered buffers. It is not run by two threads at once.

    A buffer is bound to an address before the first run, and again when the address changes. The
    caller owns the memory.
    """

    def replace(self, index: int, operator: Any, params: Any, *, alone: bool) -> None:
        """Replace the parameters of a step that was resized."""

    def bind(self, number: int, array: Array, offset: int = 0) -> None:
        """Bind a buffer to a dense array that is not empty, at a byte offset."""

    def bind_all(self, binds: Sequence[tuple[int, int]], array: Array) -> None:
        """Bind several buffers, each (number, byte offset), to a dense array."""

    def bind_at(self, binds: Sequence[tuple[int, int]], start: Any) -> None:
        """Bind several buffers, each (number, byte offset), to an `Executor.address_of`."""

    def bind_readable(self, binds: Sequence[tuple[int, int]], array: Array) -> Array:
        """Bind as `bind_all` does, to `Executor.readable` of an array, which is returned.

        The array may be empty: then nothing is bound.
        """

    def bind_workspace(self, memory: Array, offset: int) -> None:
        """Bind scratch memory to `memory` at a byte offset; arena buffers may have moved too."""

    def run(self, pool: Any, *, timed: bool = False) -> Array | None:
        """Run all steps.

        Args:
            pool: the executor's threads.
            timed: whether to measure each step.

        Returns:
            The nanoseconds of each step, uint64[steps], where `timed`.

        Raises:
            BackendError: a step that failed; the message names its node.
        """

    def call(self, pool: Any) -> NativeCall | None:
        """Return the tape as C runs it, after it has run; None where only Python can.

        Valid until a step is replaced or the workspace is bound to other memory.
        """


class Executor(Protocol):
    """The runtime of a backend: builds tapes from sized steps."""

    @property
    def extra_bytes(self) -> int:
        """Bytes that kernels may read after the end of a buffer."""

    def tape(self, entries: Sequence[Entry], buffers: int) -> Tape:
        """Return a tape of these steps over `buffers` buffers, none of which is bound yet."""

    def readable(self, array: Array) -> Array:
        """Return the array, or a copy, so that it is dense and padded with `extra_bytes`."""

    def address_of(self, memory: Array, offset: int) -> Any:
        """Return what `Tape.bind_at` takes for a byte of `memory`, which the caller keeps."""

    def runs_alone(self, call: str, size: int) -> bool:
        """Return whether a step is too small for the thread pool: the caller runs it alone.

        Args:
            call: of the step's `Run`.
            size: the bytes of its operands.
        """
