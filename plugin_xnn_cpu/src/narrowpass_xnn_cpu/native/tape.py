"""A tape: steps over numbered buffers, run by one call into C without Python's lock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import HEAP, allocate_bytes
from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension, meaning
from narrowpass_xnn_cpu.native.operator import Operator
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.signals import Interruption


class Tape:
    """Compiled steps. Not safe to run from two threads at once.

    Args:
        entries: the steps.
        buffers: how many buffers there are.
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
        """Replace the parameters of a step; an operator that was reshaped stays the same object."""
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
        """Bind a buffer to the bytes of `array` from an offset on.

        The array is dense and not empty. The caller keeps it as long as the tape runs on it.
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
        """Bind as `bind_all` does to `readable` of an array, which may be empty; return that."""
        size = array.nbytes
        if size and array.flags.c_contiguous:
            start = _buffer(self._ffi, array)
            if self._lib.np_overread_stays_in_page(start, size) or _ends_well(_start(array), array):
                self.bind_at(binds, start)
                return array
        given = readable(array)
        if given.nbytes:
            self.bind_all(binds, given)
        return given

    def bind_workspace(self, memory: np.ndarray[Any, Any], offset: int) -> None:
        """Bind the workspace to `memory`, from an offset in bytes on. Buffers may have moved too.

        The caller keeps it as long as the tape runs on it.
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
            BaseException: what a signal handler raised meanwhile, such as KeyboardInterrupt. The
                tape can be run again; what this run would have written is undefined.
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
        self._end(status)
        return times

    def run_loop(self, pool: ThreadPool, loop: Any) -> None:
        """Run all steps many times, as ``np_loop`` says; raises as `run` does."""
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
        self._end(status)

    def _end(self, status: int) -> None:
        """Raise for the status of a run, and note which operators are set up."""
        if status:
            self._set_up_again()
            if status == self._lib.NP_STATUS_CANCELLED:
                raise self._interruption.taken()
            name = self._entries[self._failed[0]].name
            raise BackendError(f"node {name!r} failed: {meaning(status)}")
        if self._fresh:
            self._fresh = False
            for index, entry in enumerate(self._entries):
                self._steps[index].set_up = not entry.moving


def address_of(array: np.ndarray[Any, Any]) -> Any:
    """Return the address of a dense array, for `Tape.bind_at`; who uses it keeps the array."""
    return _buffer(extension().ffi, array)


def _buffer(ffi: Any, array: np.ndarray[Any, Any]) -> Any:
    # The buffer protocol knows no bfloat16.
    return ffi.from_buffer(array if array.dtype.kind != "V" else array.view(np.uint16))


def aligned(size: int) -> np.ndarray[Any, Any]:
    """Return `size` fresh bytes that start at a multiple of 64, with what kernels over-read after.

    Raises:
        BackendError: more bytes than the machine has.
    """
    return allocate_bytes(HEAP, size + extra_bytes())


_PAGE = 4096


def extra_bytes() -> int:
    """Return how many bytes kernels may read beyond a buffer."""
    return int(extension().lib.XNN_EXTRA_BYTES)


def readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `array`, dense and with readable bytes after it; a copy where it is not so.

    The bytes after it surely are mapped where they lie in the page of its last byte, or belong to
    what it is a view of.
    """
    size = array.nbytes
    if not size:
        return array
    if array.flags.c_contiguous and _ends_well(_start(array), array):
        return array
    copy: np.ndarray[Any, Any] = aligned(size)[:size].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _ends_well(start: int, array: np.ndarray[Any, Any]) -> bool:
    """Return whether there are readable bytes after a dense array that starts there."""
    end = start + array.nbytes
    extra = extra_bytes()
    return (end - 1) % _PAGE + extra < _PAGE or end + extra <= _end(array.base)


def _end(base: object) -> int:
    """Return the address behind what an array is a view of; 0 where that is not known."""
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
        return 0
    return int(base.ctypes.data) + base.nbytes  # of any dtype, that of records too


def _start(array: np.ndarray[Any, Any]) -> int:
    # numpy's own ways make an object for each of its fields.
    ffi = extension().ffi
    return int(ffi.cast("uintptr_t", _buffer(ffi, array)))
