"""Loop and Scan: the partition of a loop's body runs in all iterations by one call into C.

State variables are double-buffered: an iteration reads one buffer and writes the other. Slices of
scan inputs are read without copies, and slices of scan outputs are written into the stacked output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from narrowpass_planning.memory.allocator import allocate
from narrowpass_planning.plan.bound import BoundPartition, OutputSource
from narrowpass_planning.plan.loop import LoopSignature, ScanInput
from narrowpass_planning.plan.step import Array, Slot
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import Tape, extra_bytes, readable

_FIRST_ITERATIONS = 16
"""Iterations that scan outputs are first allocated for, where the trip count is not known."""

_LARGE = 1 << 24
"""Bytes of scan outputs above which a loop that a condition may end grows them as needed."""


class TapeLoop:
    """Runs the bound partition of a loop's body in all iterations.

    Args:
        bound: the partition, bound to the shapes of an iteration.
        roles: which inputs and outputs are state, condition, scan inputs and scan outputs.
        feeds: values of the shapes that it is bound to, by the names of inputs.
        others: body outputs that the partition does not compute, by name: a constant, or the name
            of the input that is passed through.
    """

    def __init__(
        self,
        bound: BoundPartition,
        roles: LoopSignature,
        feeds: Mapping[str, Array],
        others: Mapping[str, Array | str],
    ) -> None:
        self._bound, self._roles, self._others = bound, roles, dict(others)
        self._version = bound.version
        self._tape = cast("Tape", bound.tape)  # `NativeExecutor` builds no other
        known = bound.output_sources()
        self._outs = [_out(name, known, others, feeds) for name in roles.outputs]
        first = len(self._outs) - len(roles.scanned)
        self._scanned = self._outs[first:]
        self._results = self._outs[first - len(roles.results) : first]
        self._each = sum(out.size for out in self._scanned)
        alike = zip(roles.states, self._results, strict=True)
        self.fits = all(
            (out.shape, out.dtype) == (feeds[name].shape, feeds[name].dtype) for name, out in alike
        )
        self._counter = _array((1,), np.dtype(np.int64))
        self._condition = _array((1,), np.dtype(np.bool_))
        self._going = _array((1,), np.dtype(np.bool_))
        self._going[0] = True
        self._steady = not roles.condition or _is_steady(self._outs[0], roles)
        if self.fits:
            self._build()

    def holds(self, bound: BoundPartition, others: Mapping[str, Array | str]) -> bool:
        """Return whether the loop is still valid: same binding of the partition, same `others`."""
        same = bound is self._bound and bound.version == self._version
        return same and all(others[name] is self._others[name] for name in others)

    def _build(self) -> None:
        """Build ``struct np_loop``: addresses, the buffers bound to them, and copies."""
        roles, ffi = self._roles, extension().ffi
        names = [*roles.states, *roles.slices]
        inputs = {name: place for place, name in enumerate(names)}
        fixed: dict[int, Array] = {}
        targets: list[int] = []
        count = len(inputs)

        def add(array: Array | None = None) -> int:
            nonlocal count
            if array is not None:
                fixed[count] = array
            count += 1
            return count - 1

        if roles.condition:
            targets.append(add(self._condition))
        targets += [add() for _ in (*roles.results, *roles.scanned)]
        ours = {roles.number: self._counter, roles.going: self._going}
        self._outer: dict[str, int] = {}

        def source(name: str) -> int:
            if name not in inputs:
                inputs[name] = add(ours.get(name))
                if name not in ours:
                    self._outer[name] = inputs[name]
            return inputs[name]

        buffers = [
            (source(name), offset, number)
            for name, binds in self._bound.fed
            for number, offset in binds
        ]
        direct: dict[Slot | None, int] = {}
        copies = []
        for out, target in zip(self._outs, targets, strict=True):
            if out.binds is not None and out.root not in direct:
                buffers += [(target, offset, number) for number, offset in out.binds]
                direct[out.root] = target
        for out, target in zip(self._outs, targets, strict=True):
            if direct.get(out.root) == target or not out.size:
                continue
            if out.array is not None:
                place = add(out.array)
            else:
                place = source(out.fed) if out.fed else direct[out.root]
            copies.append((place, out.offset, target, out.size))
        self._places = ffi.new("np_place[]", count)
        self._parts = ffi.new("np_place_buffer[]", buffers), ffi.new("np_place_copy[]", copies)
        self._fixed = fixed  # keeps what the places point to
        for place, array in fixed.items():
            self._point(place, _address(array))
        self._stacked = targets[len(targets) - len(roles.scanned) :]
        ends = targets[len(targets) - len(roles.scanned) - len(roles.results) :]
        # Double buffers of the state variables, for all runs.
        self._double_buffers = [
            (_array(out.shape, out.dtype), _array(out.shape, out.dtype)) for out in self._results
        ]
        for state, pair in enumerate(self._double_buffers):
            addresses = [_address(array) for array in pair]
            self._places[state].turns = addresses
            self._places[ends[state]].turns = addresses
            self._places[ends[state]].phase = 1
        self._loop = loop = ffi.new("np_loop *")
        loop.places, loop.place_count = self._places, count
        loop.buffers, loop.buffer_count = self._parts[0], len(buffers)
        loop.copies, loop.copy_count = self._parts[1], len(copies)
        loop.counter = ffi.cast("int64_t *", _address(self._counter))
        if not self._steady:
            loop.condition = ffi.cast("uint8_t *", _address(self._condition))

    def _point(self, place: int, start: Any, stride: int = 0) -> None:
        entry = self._places[place]
        entry.turns[0] = entry.turns[1] = start
        entry.stride = stride

    def run(
        self,
        feeds: Mapping[str, Array],
        scans: Sequence[ScanInput],
        limit: int,
        pool: ThreadPool,
        *,
        known: bool,
    ) -> tuple[list[Array], list[Array]]:
        """Run at least one iteration.

        Args:
            feeds: initial state, one slice of each scan input, and values captured from the outer
                graph, by the names of inputs.
            scans: scan inputs of `limit` slices.
            limit: the maximum trip count.
            pool: the threads.
            known: whether `limit` is the trip count, unless the condition ends the loop.

        Returns:
            The final state, and the stacked scan outputs.
        """
        roles, places = self._roles, self._places
        held: list[Array] = []  # kept alive during the run, which has addresses only
        for place, name in enumerate(roles.states):
            held.append(readable(feeds[name]))
            places[place].first = _address(held[-1])
        for name, place in self._outer.items():
            held.append(readable(feeds[name]))
            self._point(place, _address(held[-1]))
        for place, scan in enumerate(scans, len(roles.states)):
            array = readable(scan.array)
            held.append(array)
            stride = array.nbytes // len(array)
            start = _address(array)
            if scan.backwards and stride:
                start, stride = start + stride * (len(array) - 1), -stride
            self._point(place, start, stride)
        certain = known and (self._steady or limit * self._each <= _LARGE)
        room = limit if certain else min(limit, _FIRST_ITERATIONS)
        stacks = [_array((room, *out.shape), out.dtype) for out in self._scanned]
        done = 0
        while True:
            for place, stack, out in zip(self._stacked, stacks, self._scanned, strict=True):
                self._point(place, _address(stack), out.size)
            loop = self._loop
            loop.start, loop.end = done, min(room, limit)
            self._tape.run_loop(pool, loop)
            done = int(loop.done)
            if done >= limit or (not self._steady and not self._condition[0]):
                break
            room = min(limit, 2 * room)
            for index, stack in enumerate(stacks):
                larger = _array((room, *stack.shape[1:]), stack.dtype)
                larger[:done] = stack[:done]
                stacks[index] = larger
        states = [pair[done % 2].copy() for pair in self._double_buffers]
        return states, [s if len(s) == done else s[:done].copy() for s in stacks]


def _out(
    name: str,
    known: Mapping[str, OutputSource],
    others: Mapping[str, Array | str],
    feeds: Mapping[str, Array],
) -> OutputSource:
    if name in known:
        return known[name]
    other = others[name]
    if isinstance(other, str):
        array = feeds[other]
        return OutputSource(array.shape, array.dtype, array.nbytes, fed=other)
    raw = np.ascontiguousarray(other).reshape(-1).view(np.uint8)
    return OutputSource(other.shape, other.dtype, other.nbytes, array=raw, fixed=True)


def _is_steady(condition: OutputSource, roles: LoopSignature) -> bool:
    """Return whether the condition is always true: a constant, or the condition's input itself."""
    if condition.binds is not None or condition.offset:
        return False
    if condition.array is not None:
        return condition.fixed and bool(condition.array[0])
    return bool(condition.fed) and condition.fed == roles.going


def _address(array: Array) -> Any:
    ffi = extension().ffi
    if not array.nbytes:
        return ffi.NULL
    # The buffer protocol knows no bfloat16.
    raw = array if array.dtype.kind != "V" else array.view(np.uint16)
    return ffi.cast("char *", ffi.from_buffer(raw))


def _array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Allocate an array that kernels may over-read.

    Raises:
        BackendError: out of memory.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = allocate((size + extra_bytes(),), np.dtype(np.uint8))
    array: Array = raw[:size].view(dtype).reshape(shape)
    return array
