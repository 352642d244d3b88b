"""An executor for kernels that are Python callables, such as numpy functions."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.executor import Array, Entry
from narrowpass_planning.plan.step import Run, Shape, Step, elements

CALL = "python"


@dataclass(frozen=True)
class OneThread:
    """A thread pool of the calling thread alone."""

    threads: int = 1


@dataclass(frozen=True)
class PythonCall:
    """A kernel with the shapes and types of its operands.

    Attributes:
        function: called with the inputs and the output, which it fills.
        inputs: shape and dtype of each.
        output: shape and dtype.
    """

    function: Callable[..., object]
    inputs: tuple[tuple[Shape, np.dtype[Any]], ...]
    output: tuple[Shape, np.dtype[Any]]


def python_run(
    step: Step, shapes: Sequence[Shape], shape: Shape, function: Callable[..., object]
) -> Run:
    """Return a sized step that calls a Python function, for `Step.size`.

    Args:
        step: the step that is sized.
        shapes: of its inputs.
        shape: of its output.
        function: called with the inputs and the output: dense arrays, which it must not keep.
    """
    inputs = tuple((given, slot.dtype) for given, slot in zip(shapes, step.inputs, strict=True))
    return Run(shape, CALL, params=PythonCall(function, inputs, (shape, step.output.dtype)))


class PythonTape:
    """Calls one Python function for each step; see `narrowpass_planning.plan.executor.Tape`.

    Buffers are addresses. Arrays over them exist only while a step runs, so that they do not keep
    memory of outputs in use after the caller has dropped these.
    """

    def __init__(self, entries: Sequence[Entry], buffers: int) -> None:
        self._entries = list(entries)
        self._calls = [entry.params for entry in entries]
        self._starts = [0] * buffers

    def replace(self, index: int, operator: Any, params: Any, *, alone: bool) -> None:
        """Replace the kernel of a step."""
        self._calls[index] = params

    def bind(self, number: int, array: Array, offset: int = 0) -> None:
        """Bind a buffer."""
        self._starts[number] = int(array.ctypes.data) + offset

    def bind_all(self, binds: Sequence[tuple[int, int]], array: Array) -> None:
        """Bind several buffers to an array."""
        self.bind_at(binds, int(array.ctypes.data))

    def bind_at(self, binds: Sequence[tuple[int, int]], start: int) -> None:
        """Bind several buffers to an address."""
        for number, offset in binds:
            self._starts[number] = start + offset

    def bind_readable(self, binds: Sequence[tuple[int, int]], array: Array) -> Array:
        """Bind several buffers to a dense copy of an array, or to itself."""
        dense = np.ascontiguousarray(array)
        self.bind_all(binds, dense)
        return dense

    def bind_workspace(self, memory: Array, offset: int) -> None:
        """Do nothing: numpy allocates what kernels need."""

    def call(self, pool: OneThread) -> None:
        """Return None: the steps are functions of Python."""

    def run(self, pool: OneThread, *, timed: bool = False) -> Array | None:
        """Call all steps.

        Raises:
            BackendError: a step that failed; the message names its node.
        """
        times = np.zeros(len(self._calls), np.uint64)
        for index, (entry, call) in enumerate(zip(self._entries, self._calls, strict=True)):
            inputs = map(self._view, entry.inputs, call.inputs)
            start = time.perf_counter_ns()
            try:
                call.function(*inputs, self._view(entry.output, call.output))
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                raise BackendError(f"node {entry.name!r} failed: {error}") from error
            times[index] = time.perf_counter_ns() - start
        return times if timed else None

    def _view(self, number: int, known: tuple[Shape, np.dtype[Any]]) -> Array:
        shape, dtype = known
        size = elements(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        raw = _bytes_of(size).from_address(self._starts[number])
        return np.ndarray(shape, dtype, raw)


@functools.cache
def _bytes_of(size: int) -> Any:
    return ctypes.c_ubyte * size


class PythonExecutor:
    """The `narrowpass_planning.plan.executor.Executor` of Python callables, in one thread."""

    extra_bytes = 0

    def tape(self, entries: Sequence[Entry], buffers: int) -> PythonTape:
        """Return a tape of `PythonCall` steps."""
        return PythonTape(entries, buffers)

    def readable(self, array: Array) -> Array:
        """Return an array, dense."""
        return np.ascontiguousarray(array)

    def address_of(self, memory: Array, offset: int) -> int:
        """Return the address of a byte."""
        return int(memory.ctypes.data) + offset

    def runs_alone(self, call: str, size: int) -> bool:
        """Return that there is one thread."""
        return True
