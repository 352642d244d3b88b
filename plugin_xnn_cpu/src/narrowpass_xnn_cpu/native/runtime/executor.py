"""The executor of this backend: runs planned steps as a tape in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass_planning.plan.executor import Array, Entry
from narrowpass_xnn_cpu.native.runtime.tape import Tape, address_of, extra_bytes, readable

_SMALL = 1 << 16
"""Bytes that one thread reads and writes in less time than it takes to wake the workers."""

_BY_BYTES = frozenset(
    {
        "NP_BINARY",
        "NP_MAX_POOL_S8",
        "NP_PAD",
        "NP_PAD_S8",
        "NP_REDUCE_S8",
        "NP_RESIZE_BILINEAR",
        "NP_TRANSPOSE",
        "NP_TRANSPOSE_S8",
        "NP_UNARY",
    }
)
"""Calls of XNNPACK that are bound by memory bandwidth, other than GEMMs and convolutions."""


class NativeExecutor:
    """See `narrowpass_planning.plan.executor.Executor`."""

    @property
    def extra_bytes(self) -> int:
        """Bytes that kernels may read beyond a buffer."""
        return extra_bytes()

    def tape(self, entries: Sequence[Entry], buffers: int) -> Tape:
        """Return a tape, which C runs without the GIL."""
        return Tape(entries, buffers)

    def readable(self, array: Array) -> Array:
        """Return an array that is dense and that kernels may over-read: itself or a copy."""
        return readable(array)

    def address_of(self, memory: Array, offset: int) -> Any:
        """Return the address of a byte of `memory`."""
        return address_of(memory) + offset

    def runs_alone(self, call: str, size: int) -> bool:
        """Return whether an operator of XNNPACK is too small for more than one thread."""
        return call in _BY_BYTES and size < _SMALL


EXECUTOR = NativeExecutor()
