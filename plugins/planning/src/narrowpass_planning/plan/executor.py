"""What a backend supplies to run sized steps: the protocols `Executor` and `Tape`."""

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
    """One step of a tape.

    Attributes:
        call: what the executor calls; of the step's `Run`.
        inputs: buffer numbers.
        output: a buffer number.
        operator: of the step's `Run`.
        params: of the step's `Run`.
        moving: whether a buffer of the step may be elsewhere in each run.
        name: of the node, for errors.
        alone: whether the calling thread runs it alone; see `Executor.runs_alone`.
    """

    call: str
    inputs: tuple[int, ...]
    output: int
    operator: Any
    params: Any
    moving: bool
    name: str
    alone: bool = False


class Tape(Protocol):
    """Steps over numbered buffers. No two threads run one at once.

    A buffer is bound to memory before the first run, and again whenever that is elsewhere. The
    caller keeps the memory for as long as the tape runs on it.
    """

    def replace(self, index: int, operator: Any, params: Any, *, alone: bool) -> None:
        """Replace the parameters of a step that was sized again."""

    def bind(self, number: int, array: Array, offset: int = 0) -> None:
        """Bind a buffer to the bytes of a dense array that is not empty, from a byte on."""

    def bind_all(self, binds: Sequence[tuple[int, int]], array: Array) -> None:
        """Bind several buffers, each with its first byte in a dense array."""

    def bind_at(self, binds: Sequence[tuple[int, int]], start: Any) -> None:
        """Bind several buffers, each with its offset from an `Executor.address_of`."""

    def bind_readable(self, binds: Sequence[tuple[int, int]], array: Array) -> Array:
        """Bind as `bind_all` does, to `Executor.readable` of an array, which is returned.

        The array may be empty: then nothing is bound.
        """

    def bind_workspace(self, memory: Array, offset: int) -> None:
        """Set where scratch memory starts: a byte of `memory`. Buffers may have moved too."""

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


class Executor(Protocol):
    """Turns steps that were sized into a tape."""

    @property
    def extra_bytes(self) -> int:
        """What kernels may read after the end of a buffer."""

    def tape(self, entries: Sequence[Entry], buffers: int) -> Tape:
        """Return a tape of these steps over so many buffers, none of which is bound yet."""

    def readable(self, array: Array) -> Array:
        """Return an array, dense and with `extra_bytes` after it; a copy where it is not so."""

    def address_of(self, memory: Array, offset: int) -> Any:
        """Return what `Tape.bind_at` takes for a byte of `memory`, which the caller keeps."""

    def runs_alone(self, call: str, size: int) -> bool:
        """Return whether the threads are not worth waking for a step.

        Args:
            call: of the step's `Run`.
            size: the bytes of its operands.
        """
