"""A partition that runs many times in one call into C: the body of a loop.

What an iteration gives as state is what the next one takes: two pieces of memory take turns. Slices
of scan inputs are read where they lie, those of scan outputs are computed where they belong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from narrowpass_planning.memory.allocator import allocate
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.loop import LoopSignature, ScanInput
from narrowpass_planning.plan.output_source import OutputSource
from narrowpass_planning.plan.step import Array, Slot
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.tape import Tape, extra_bytes, readable

_FIRST = 16
"""Iterations that there is memory for at first, where their number is not known."""

_LARGE = 1 << 24
"""Bytes of scan outputs that are not taken before they are needed, where a condition may end it."""


class NativeLoop:
    """A bound partition, and how its inputs and outputs follow each other.

    Args:
        bound: the partition, for the shapes of an iteration.
        roles: of its inputs and outputs.
        feeds: values of the shapes that it is bound to, by the names of inputs.
        others: outputs that the partition has not: by name, what they always are, or the name of
            the input that they are.
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
        self._tape = cast(Tape, bound.tape)  # `NativeExecutor` builds no other
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
            self._lay_out()

    def holds(self, bound: BoundPartition, others: Mapping[str, Array | str]) -> bool:
        """Tell whether a partition is bound as it was, and gives the same values beside."""
        same = bound is self._bound and bound.version == self._version
        return same and all(others[name] is self._others[name] for name in others)

    def _lay_out(self) -> None:
        """Say which buffers lie in which place, and what is copied from one to another."""
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
        # Two pieces of memory for each state, for all loops to come.
        self._turns = [
            (_array(out.shape, out.dtype), _array(out.shape, out.dtype)) for out in self._results
        ]
        for state, pair in enumerate(self._turns):
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
            feeds: the first state by the names of the inputs, one slice of each scan input, and
                what is read from outside.
            scans: scan inputs, of `limit` slices.
            limit: the most iterations.
            pool: the threads.
            known: whether there surely are as many, unless the condition ends it.

        Returns:
            The last state, and the stacked outputs.
        """
        roles, places = self._roles, self._places
        held: list[Array] = []  # until the end: places are addresses only
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
        room = limit if certain else min(limit, _FIRST)
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
        states = [pair[done % 2].copy() for pair in self._turns]
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
    """Tell whether no iteration ends the loop: its condition is what says that it goes on."""
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
    """Give an array with readable bytes behind it.

    Raises:
        BackendError: more bytes than the machine has.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = allocate((size + extra_bytes(),), np.dtype(np.uint8))
    made: Array = raw[:size].view(dtype).reshape(shape)
    return made
