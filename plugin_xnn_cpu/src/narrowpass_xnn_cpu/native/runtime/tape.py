"""A tape: a sequence of kernel calls over numbered buffers, run by one C call without the GIL."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import HEAP, allocate_bytes
from narrowpass_planning.plan.executor import Array, Entry, NativeCall
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension, meaning
from narrowpass_xnn_cpu.native.operator import Operator
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.signals import Interruption

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


class Tape:
    """A sequence of kernel calls in C. Only one thread may run it at a time.

    Args:
        entries: the steps: call, operator or parameters, and buffer numbers.
        buffers: the number of buffers.
    """

    def __init__(self, entries: Sequence[Entry], buffers: int) -> None:
        ffi, lib = extension().ffi, extension().lib
        self._ffi, self._lib = ffi, lib
        self._entries = list(entries)  # keeps operators and parameters alive
        self._steps = ffi.new("np_step[]", max(1, len(entries)))
        self._buffers = ffi.new("void *[]", max(1, buffers))
        self._failed = ffi.new("size_t *")
        self._workspace = ffi.NULL
        self._interruption = Interruption(extension())
        self._fresh = True
        for step, entry in zip(self._steps, self._entries, strict=False):
            step.call = calls.check(entry.call, entry.params)
            for index in range(lib.NP_MAX_INPUTS):
                step.inputs[index] = entry.inputs[index] if index < len(entry.inputs) else -1
            step.output = entry.output
            step.alone = entry.alone
            step.op = ffi.NULL if entry.operator is None else entry.operator.handle
            step.params = ffi.NULL if entry.params is None else entry.params

    def replace(self, index: int, operator: Operator | None, params: Any, *, alone: bool) -> None:
        """Replace operator and parameters of a step, after they have been reshaped."""
        ffi = self._ffi
        old = self._entries[index]
        entry = dataclasses.replace(old, operator=operator, params=params, alone=alone)
        self._entries[index] = entry
        step = self._steps[index]
        step.alone = alone
        step.op = ffi.NULL if operator is None else operator.handle
        step.params = ffi.NULL if params is None else params
        step.set_up = 0
        self._fresh = True

    def bind(self, number: int, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        """Bind a buffer to the memory of `array`, from an offset in bytes on.

        The array is dense and not empty. The caller keeps it alive while the tape uses it.
        """
        self._buffers[number] = _buffer(self._ffi, array) + offset

    def bind_all(self, binds: Sequence[tuple[int, int]], array: np.ndarray[Any, Any]) -> None:
        """Bind several buffers, each with its offset in bytes, to `array`."""
        self.bind_at(binds, _buffer(self._ffi, array))

    def bind_at(self, binds: Sequence[tuple[int, int]], start: Any) -> None:
        """Bind several buffers, each with its offset in bytes, to an address."""
        buffers = self._buffers
        for number, offset in binds:
            buffers[number] = start + offset if offset else start

    def bind_readable(
        self, binds: Sequence[tuple[int, int]], array: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Bind buffers to an array or to its `readable` copy; return the one that is bound."""
        size, flags = array.nbytes, array.flags
        if size and flags.c_contiguous and flags.aligned:
            start = _buffer(self._ffi, array)
            if self._lib.np_overread_stays_in_page(start, size) or _has_readable_tail(
                _start(array), array
            ):
                self.bind_at(binds, start)
                return array
        bound = readable(array)
        if bound.nbytes:
            self.bind_all(binds, bound)
        return bound

    def bind_workspace(self, memory: np.ndarray[Any, Any], offset: int) -> None:
        """Bind the workspace to `memory`, from an offset in bytes on; operators are set up again.

        The caller keeps it alive while the tape uses it.
        """
        self._workspace = self._ffi.from_buffer(memory) + offset
        self._set_up_again()

    def _set_up_again(self) -> None:
        self._fresh = True
        for index in range(len(self._entries)):
            self._steps[index].set_up = 0

    def run(self, pool: ThreadPool, *, timed: bool = False) -> np.ndarray[Any, Any] | None:
        """Run all steps.

        Returns:
            The nanoseconds of each step, where `timed`.

        Raises:
            BackendError: a step that failed; the message names its node.
            BaseException: what a signal handler raised during the run, such as KeyboardInterrupt.
                The tape can be run again; the outputs of this run are undefined.
        """
        ffi = self._ffi
        count = len(self._entries)
        times = np.zeros(count, np.uint64) if timed else None
        pointer = ffi.NULL if times is None else ffi.cast("uint64_t *", ffi.from_buffer(times))
        status = self._lib.np_run(
            self._steps,
            count,
            self._buffers,
            self._workspace,
            pool.workers,
            pointer,
            self._failed,
            *self._interruption.arguments(),
        )
        self._finish(status)
        return times

    def run_loop(self, pool: ThreadPool, loop: Any) -> None:
        """Run all steps in each iteration of a ``struct np_loop``; raises as `run` does."""
        status = self._lib.np_run_loop(
            self._steps,
            len(self._entries),
            self._buffers,
            self._workspace,
            pool.workers,
            self._failed,
            *self._interruption.arguments(),
            loop,
        )
        self._finish(status)

    def call(self, pool: ThreadPool) -> NativeCall:
        """See `narrowpass_planning.plan.executor.Tape.call`."""
        ffi, lib = self._ffi, self._lib
        call = ffi.new("np_tape_call *")
        call.steps, call.count = self._steps, len(self._entries)
        call.buffers, call.workspace = self._buffers, self._workspace
        call.workers = pool.workers
        function = ffi.addressof(lib, "np_tape_call_run")
        run, argument, buffers = (
            int(ffi.cast("uintptr_t", pointer)) for pointer in (function, call, self._buffers)
        )
        return NativeCall(run, argument, buffers, extra_bytes(), pool.process, (call, self, pool))

    def _finish(self, status: int) -> None:
        """Raise for the status of a run, and record which operators are set up."""
        if status:
            self._set_up_again()
            if status == self._lib.NP_STATUS_CANCELLED:
                raise self._interruption.pop()
            name = self._entries[self._failed[0]].name
            raise BackendError(f"node {name!r} failed: {meaning(status)}")
        if self._fresh:
            self._fresh = False
            for index, entry in enumerate(self._entries):
                self._steps[index].set_up = not entry.moving


def _buffer(ffi: Any, array: np.ndarray[Any, Any]) -> Any:
    # The buffer protocol knows no bfloat16.
    return ffi.from_buffer(array if array.dtype.kind != "V" else array.view(np.uint16))


def aligned(size: int) -> np.ndarray[Any, Any]:
    """Allocate `size` bytes, aligned to 64, with the bytes after them that kernels over-read.

    Raises:
        BackendError: out of memory.
    """
    return allocate_bytes(HEAP, size + extra_bytes())


_PAGE = 4096


def extra_bytes() -> int:
    """Return the number of bytes that kernels may over-read after a buffer."""
    return int(extension().lib.XNN_EXTRA_BYTES)


def readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `array` if it is dense and aligned, and kernels may over-read it, else a copy.

    In C, reading an element at an address that is no multiple of its size is undefined. Bytes after
    the array are readable if they are in the page of its last byte, or in the array that it is a
    view of.
    """
    size = array.nbytes
    if not size:
        return array
    flags = array.flags
    if flags.c_contiguous and flags.aligned and _has_readable_tail(_start(array), array):
        return array
    copy: np.ndarray[Any, Any] = aligned(size)[:size].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _has_readable_tail(start: int, array: np.ndarray[Any, Any]) -> bool:
    """Return whether kernels may over-read a dense array that starts at this address."""
    end = start + array.nbytes
    extra = extra_bytes()
    return (end - 1) % _PAGE + extra < _PAGE or end + extra <= _end_of(array.base)


def _end_of(base: object) -> int:
    """Return the end address of a dense base array; 0 for any other object."""
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
        return 0
    return int(base.ctypes.data) + base.nbytes  # of any dtype, that of records too


def _start(array: np.ndarray[Any, Any]) -> int:
    # Faster than `ctypes.data`, which creates an object for each field of the interface.
    ffi = extension().ffi
    return int(ffi.cast("uintptr_t", _buffer(ffi, array)))


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
        """Return the address of a byte of `memory`, which the caller keeps alive."""
        return _buffer(extension().ffi, memory) + offset

    def runs_alone(self, call: str, size: int) -> bool:
        """Return whether an operator of XNNPACK is too small for more than one thread."""
        return call in _BY_BYTES and size < _SMALL


EXECUTOR = NativeExecutor()
