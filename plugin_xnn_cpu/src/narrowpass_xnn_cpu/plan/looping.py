"""A partition that runs many times in one call into C: the body of a loop.

What an iteration gives as state is what the next one takes: two pieces of memory take turns. Slices
of scan inputs are read where they lie, those of scan outputs are computed where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.tape import Tape, aligned, readable
from narrowpass_xnn_cpu.plan.bound import Bound, Outgoing
from narrowpass_xnn_cpu.plan.step import Array, Slot

_FIRST = 16
"""Iterations that there is memory for at first, where their number is not known."""

_LARGE = 1 << 24
"""Bytes of scan outputs that are not taken before they are needed, where a condition may end it."""


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of a body are to a loop; names are empty where there is none.

    Attributes:
        number: the input that has the iteration's number.
        going: the input that says that the loop goes on.
        states: inputs of state.
        slices: inputs that are a slice of a scan input.
        condition: the output that says whether the loop goes on.
        results: outputs that are the next state.
        scanned: outputs that are stacked.
        outputs: all outputs, in order.
    """

    number: str
    going: str
    states: tuple[str, ...]
    slices: tuple[str, ...]
    condition: str
    results: tuple[str, ...]
    scanned: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs."""
        condition = (self.condition,) if self.condition else ()
        return (*condition, *self.results, *self.scanned)


@dataclass(frozen=True)
class Scanned:
    """A scan input: its slices lie along the first axis.

    Attributes:
        array: dense, with the slices along axis 0.
        backwards: whether the last one comes first.
    """

    array: Array
    backwards: bool


class Repeated:
    """A bound partition, and how its inputs and outputs follow each other.

    Args:
        bound: the partition, for the shapes of an iteration.
        roles: of its inputs and outputs.
        others: outputs that the partition has not: by name, what they always are, or the name of
            the input that they are.
    """

    def __init__(self, bound: Bound, roles: Roles, others: Mapping[str, Array | str]) -> None:
        self._bound, self._roles = bound, roles
        self._outs = bound.outgoing()
        self._others = others

    def fits(self, feeds: Mapping[str, Array]) -> bool:
        """Tell whether what an iteration gives as state can be the next one's."""
        for state, result in zip(self._roles.states, self._roles.results, strict=True):
            given = feeds[state]
            if result in self._outs:
                out = self._outs[result]
                shape, dtype = out.shape, out.dtype
            else:
                other = self._others[result]
                array = feeds[other] if isinstance(other, str) else other
                shape, dtype = array.shape, array.dtype
            if (shape, dtype) != (given.shape, given.dtype):
                return False
        return True

    def run(
        self,
        feeds: Mapping[str, Array],
        scans: Sequence[Scanned],
        limit: int,
        pool: ThreadPool,
        *,
        known: bool,
    ) -> tuple[list[Array], list[Array], int]:
        """Run at least one iteration.

        Args:
            feeds: the first state by the names of the inputs, one slice of each scan input, and
                what is read from outside.
            scans: scan inputs, of `limit` slices.
            limit: the most iterations.
            pool: the threads.
            known: whether there surely are as many, unless the condition ends it.

        Returns:
            The last state, the stacked outputs, and the number of iterations.
        """
        run = _Run(self._bound, self._roles, feeds, scans)
        outs = [self._out(name, feeds) for name in self._roles.outputs]
        steady = run.is_steady(outs)
        each = sum(out.size for out in outs[len(outs) - len(self._roles.scanned) :])
        certain = known and (steady or limit * each <= _LARGE)
        room = limit if certain else min(limit, _FIRST)
        run.place(outs, room)
        return run.to_end(limit, room, pool, checked=not steady)

    def _out(self, name: str, feeds: Mapping[str, Array]) -> Outgoing:
        if name in self._outs:
            return self._outs[name]
        other = self._others[name]
        if isinstance(other, str):
            array = feeds[other]
            return Outgoing(array.shape, array.dtype, array.nbytes, fed=other)
        raw = np.ascontiguousarray(other).reshape(-1).view(np.uint8)
        return Outgoing(other.shape, other.dtype, other.nbytes, array=raw)


class _Run:
    """One loop: where all lies, and running it."""

    def __init__(
        self, bound: Bound, roles: Roles, feeds: Mapping[str, Array], scans: Sequence[Scanned]
    ) -> None:
        self._bound, self._roles = bound, roles
        self._counter = _array((1,), np.dtype(np.int64))
        self._condition = _array((1,), np.dtype(np.bool_))
        self._places = _Places(extension().ffi)
        self._held: list[Any] = []
        self._feeds = {**feeds, roles.number: self._counter, roles.going: np.ones(1, np.bool_)}
        self._inputs = {
            name: self._places.steps(self._hold(scan.array), backwards=scan.backwards)
            for name, scan in zip(roles.slices, scans, strict=True)
        }
        self._turns: list[tuple[Array, Array]] = []
        self._stacks: list[Array] = []
        self._stack_places: list[int] = []

    def _hold(self, array: Array) -> Array:
        """Keep what is read until all has run: places are addresses only."""
        given = readable(array)
        self._held.append(given)
        return given

    def is_steady(self, outs: Sequence[Outgoing]) -> bool:
        """Tell whether no iteration ends the loop: the condition is what says that it goes on."""
        if not self._roles.condition:
            return True
        out = outs[0]
        if out.array is not None and out.offset == 0 and out.binds is None:
            return bool(out.array[0])
        return out.binds is None and out.fed != "" and out.fed == self._roles.going

    def place(self, outs: Sequence[Outgoing], room: int) -> None:
        """Give all inputs and outputs their places."""
        places, roles = self._places, self._roles
        targets = [places.fixed(self._condition)] if roles.condition else []
        for state, out in zip(roles.states, outs[len(targets) :], strict=False):
            pair = _array(out.shape, out.dtype), _array(out.shape, out.dtype)
            self._turns.append(pair)
            self._inputs[state] = places.turns(pair, 0, self._hold(self._feeds[state]))
            targets.append(places.turns(pair, 1))
        for out in outs[len(targets) :]:
            stack = _array((room, *out.shape), out.dtype)
            self._stacks.append(stack)
            self._stack_places.append(places.steps(stack))
        targets += self._stack_places
        for name, binds in self._bound.fed:
            places.bind(self._input(name), binds)
        direct: dict[Slot | None, int] = {}
        for out, target in zip(outs, targets, strict=True):
            if out.binds is not None and out.root not in direct:
                places.bind(target, out.binds)
                direct[out.root] = target
        for out, target in zip(outs, targets, strict=True):
            if direct.get(out.root) != target and out.size:
                places.copy(self._source(out, direct), out.offset, target, out.size)

    def _source(self, out: Outgoing, direct: Mapping[Slot | None, int]) -> int:
        if out.array is not None:
            self._held.append(out.array)
            return self._places.fixed(out.array)
        return self._input(out.fed) if out.fed else direct[out.root]

    def _input(self, name: str) -> int:
        if name not in self._inputs:
            self._inputs[name] = self._places.fixed(self._hold(self._feeds[name]))
        return self._inputs[name]

    def to_end(
        self, limit: int, room: int, pool: ThreadPool, *, checked: bool
    ) -> tuple[list[Array], list[Array], int]:
        """Run iterations; see `Repeated.run`."""
        done = 0
        condition = self._condition if checked else None
        while True:
            done = self._places.run(
                self._bound.tape, pool, (done, min(room, limit)), self._counter, condition
            )
            if done >= limit or (checked and not self._condition[0]):
                break
            room = min(limit, 2 * room)
            for index, stack in enumerate(self._stacks):
                larger = _array((room, *stack.shape[1:]), stack.dtype)
                larger[:done] = stack[:done]
                self._stacks[index] = larger
                self._places.move(self._stack_places[index], larger)
        states = [pair[done % 2] for pair in self._turns]
        stacks = [stack if len(stack) == done else stack[:done].copy() for stack in self._stacks]
        return states, stacks, done


class _Places:
    """Places of a loop, written for C."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self._places: list[dict[str, Any]] = []
        self._buffers: list[tuple[int, int, int]] = []
        self._copies: list[tuple[int, int, int, int]] = []

    def _address(self, array: Array) -> Any:
        if not array.nbytes:
            return self._ffi.NULL
        raw = array if array.dtype.kind != "V" else array.view(np.uint16)
        return self._ffi.cast("char *", self._ffi.from_buffer(raw))

    def _add(self, **fields: Any) -> int:
        self._places.append(fields)
        return len(self._places) - 1

    def fixed(self, array: Array) -> int:
        """Add an array that all iterations see."""
        start = self._address(array)
        return self._add(turns=[start, start])

    def turns(self, pair: tuple[Array, Array], phase: int, first: Array | None = None) -> int:
        """Add two arrays that take turns, and what is in the place of the first."""
        begin = self._ffi.NULL if first is None else self._address(first)
        return self._add(turns=[self._address(array) for array in pair], phase=phase, first=begin)

    def steps(self, array: Array, *, backwards: bool = False) -> int:
        """Add the slices of an array along its first axis."""
        stride = array.nbytes // max(1, len(array))
        start = self._address(array)
        if backwards and array.nbytes:
            return self._add(turns=[start + stride * (len(array) - 1)] * 2, stride=-stride)
        return self._add(turns=[start, start], stride=stride)

    def move(self, place: int, array: Array) -> None:
        """Let slices lie in another array."""
        start = self._address(array)
        self._places[place]["turns"] = [start, start]

    def bind(self, place: int, binds: Sequence[tuple[int, int]]) -> None:
        """Say which buffers lie in a place, with their first bytes there."""
        self._buffers += [(place, offset, number) for number, offset in binds]

    def copy(self, source: int, offset: int, target: int, size: int) -> None:
        """Say what is copied after each iteration."""
        self._copies.append((source, offset, target, size))

    def run(
        self,
        tape: Tape,
        pool: ThreadPool,
        numbers: tuple[int, int],
        counter: Array,
        condition: Array | None,
    ) -> int:
        """Run iterations from one number to another; give the number of the next one."""
        ffi = self._ffi
        places = ffi.new("np_place[]", self._places)
        buffers = ffi.new("np_place_buffer[]", self._buffers)
        copies = ffi.new("np_place_copy[]", self._copies)
        loop = ffi.new("np_loop *")
        loop.places, loop.place_count = places, len(self._places)
        loop.buffers, loop.buffer_count = buffers, len(self._buffers)
        loop.copies, loop.copy_count = copies, len(self._copies)
        loop.counter = ffi.cast("int64_t *", ffi.from_buffer(counter))
        if condition is not None:
            loop.condition = ffi.cast("uint8_t *", ffi.from_buffer(condition))
        loop.start, loop.end = numbers
        tape.run_loop(pool, loop)
        return int(loop.done)


def _array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Give an array with readable bytes behind it."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    made: Array = aligned(size)[:size].view(dtype).reshape(tuple(shape))
    return made
