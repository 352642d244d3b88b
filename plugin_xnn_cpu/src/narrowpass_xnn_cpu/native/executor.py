"""The executor of XNNPACK: sized steps become a tape of C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass_planning.plan.executor import Array, Entry
from narrowpass_xnn_cpu.native.tape import Tape, address_of, extra_bytes, readable

_SMALL = 1 << 16
"""Bytes that are read and written sooner than workers are woken."""

_BY_BYTES = frozenset(
    {
        "NP_BINARY",
        "NP_MAX_POOL_S8",
        "NP_PAD",
        "NP_PAD_S8",
        "NP_REDUCE",
        "NP_REDUCE_S8",
        "NP_RESIZE_BILINEAR",
        "NP_SOFTMAX",
        "NP_TRANSPOSE",
        "NP_TRANSPOSE_S8",
        "NP_UNARY",
    }
)
"""Calls of XNNPACK whose time is that of their operands; GEMMs and convolutions take longer."""


class NativeExecutor:
    """See `narrowpass_planning.plan.executor.Executor`."""

    @property
    def extra_bytes(self) -> int:
        """Bytes that kernels may read beyond a buffer."""
        return extra_bytes()

    def tape(self, entries: Sequence[Entry], buffers: int) -> Tape:
        """Return a tape that C runs without Python's lock."""
        return Tape(entries, buffers)

    def readable(self, array: Array) -> Array:
        """Return an array, dense and with readable bytes after it."""
        return readable(array)

    def address_of(self, memory: Array, offset: int) -> Any:
        """Return the address of a byte of `memory`."""
        return address_of(memory) + offset

    def runs_alone(self, call: str, size: int) -> bool:
        """Return whether an operator of XNNPACK is too small to wake the workers for."""
        return call in _BY_BYTES and size < _SMALL


EXECUTOR = NativeExecutor()
