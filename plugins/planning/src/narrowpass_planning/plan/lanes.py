"""Lanes: several sets of inputs that one tape computes, with the weights read once.

Each session that runs together with others has a lane. The lanes of a slot lie one behind the
other, as more rows of the slot's first axis: a step whose rows are computed one by one is sized for
all of them and runs once. Other steps, such as those that read a cache, run once for each lane. So
no element is copied from lane to lane.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import HEAP, allocate_bytes, check_memory
from narrowpass_planning.memory.caching_allocator import CachingAllocator
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Entry, Executor, Pool
from narrowpass_planning.plan.placement import place_intermediates, size_of
from narrowpass_planning.plan.step import Array, Run, Shape, Sizing, Slot, Step


class UnevenLanesError(Exception):
    """Lanes that one tape cannot compute; the message says why."""


class NoLanesError(UnevenLanesError):
    """A partition of which one tape computes no lanes, whatever the feeds."""


@dataclass(frozen=True)
class Place:
    """Where the lanes of a slot lie.

    Attributes:
        root: the slot whose memory they lie in.
        offsets: of the first byte of each lane, in the memory of all lanes of the root; for inputs
            that lie apart, and for constants, in that of the lane.
    """

    root: Slot
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A step sized for some lanes.

    Attributes:
        lane: the first.
        count: of lanes that it computes at once.
        run: the sized step.
    """

    lane: int
    count: int
    run: Run


class LanePlan:
    """Which steps run once for all lanes, and where the lanes of each slot lie.

    Args:
        inputs: slots of the inputs, by name.
        lanes: what the shapes of each lane's inputs decide.
        apart: names of inputs whose lanes do not lie one behind the other, such as caches.
        pool: the threads.

    Attributes:
        count: number of lanes.
        calls: of each step that is no constant, in order: one for all lanes, or several.
        places: of slots.
        constants: one array, or one for each lane, by slot.
        scratch: bytes of scratch memory that the steps need.

    Raises:
        UnevenLanesError: shapes that differ where they must not.
    """

    def __init__(
        self,
        inputs: Mapping[str, Slot],
        lanes: Sequence[Sizes],
        apart: Collection[str],
        pool: Pool,
    ) -> None:
        self.count = len(lanes)
        self._lanes = lanes
        self._shapes = lanes[0].shapes
        self._sizing = Sizing(pool, _no_value)
        self._known: dict[Hashable, Run] = {}
        self.apart = {inputs[name] for name in apart}
        self.constants = {slot: self._constant(slot) for slot in lanes[0].constants}
        self.places: dict[Slot, Place] = {}
        self.calls: dict[Step, list[Call]] = {}
        self.scratch = max(lane.scratch for lane in lanes)
        self._joint: set[Slot] = set()
        self._grouped: set[Slot] = set()
        for slot in (*self.apart, *self.constants):
            self.places[slot] = Place(slot, (0,) * self.count)
        for slot in inputs.values():
            if slot not in self.places:
                self._place_apiece(slot)
        for step in lanes[0].runs:
            self._add(step)

    def whole(self, slot: Slot) -> Shape:
        """Return the shape of all lanes of a slot, with an axis in front that has one for each."""
        return (self.count, *self._shapes[slot])

    def size(self, slot: Slot) -> int:
        """Return the bytes of a lane of a slot."""
        return size_of(slot, self._shapes)

    def shared(self, slot: Slot) -> bool:
        """Return whether a slot has the same elements for all lanes."""
        root = self.places[slot].root
        return root in self.constants and len(self.constants[root]) == 1

    def dense(self, slot: Slot) -> bool:
        """Return whether the lanes of a slot lie one behind the other."""
        root, offsets = self.places[slot].root, self.places[slot].offsets
        if root in self.apart or root in self.constants:
            return False
        size = self.size(slot)
        return all(offset == offsets[0] + lane * size for lane, offset in enumerate(offsets))

    def _constant(self, slot: Slot) -> list[Array]:
        arrays = [lane.constants[slot] for lane in self._lanes]
        first = arrays[0]
        same = all(a is first or (a.shape == first.shape and (a == first).all()) for a in arrays)
        return [first] if same else arrays

    def _place_apiece(self, slot: Slot) -> None:
        """Place the lanes of a slot with memory of its own one behind the other."""
        if any(lane.shapes[slot] != self._shapes[slot] for lane in self._lanes):
            raise UnevenLanesError(f"{slot.name!r} has not the same shape in all lanes")
        size = self.size(slot)
        self.places[slot] = Place(slot, tuple(lane * size for lane in range(self.count)))

    def _add(self, step: Step) -> None:
        if step.output in self.constants:
            return
        runs = [lane.runs[step] for lane in self._lanes]
        first = runs[0]
        if len({(run.call, run.view is None, run.constant is None) for run in runs}) > 1:
            raise UnevenLanesError(f"{step.name!r} is not the same step in all lanes")
        calls = [Call(lane, 1, run) for lane, run in enumerate(runs)]
        if self._stacks(step, first):
            calls = self._stacked(step, first)
        self.calls[step] = calls
        self._check_held(step)
        self.scratch = max(self.scratch, *(c.run.scratch for c in calls if c.run.call), 0)
        if first.view is not None:
            self._place_view(step, calls)
            return
        self._place_apiece(step.output)
        if calls[0].count == self.count:
            self._joint.add(step.output)
        elif calls[0].count > 1:
            self._grouped.add(step.output)

    def _place_view(self, step: Step, calls: Sequence[Call]) -> None:
        place, size, offsets = self.places[step.inputs[0]], self.size(step.output), []
        if place.root in self._grouped and size != self.size(place.root):
            raise UnevenLanesError(f"{step.name!r} is a part of what groups of lanes compute")
        for call in calls:
            start = place.offsets[call.lane] + (call.run.view or 0)
            offsets += [start + lane * size for lane in range(call.count)]
        self.places[step.output] = Place(place.root, tuple(offsets))

    def _stacks(self, step: Step, run: Run) -> bool:
        """Return whether a step may compute several lanes at once, by its inputs.

        A view does where what it is a view of was computed for all lanes at once: the rows of one
        lane need not lie together there.
        """
        axes, out = step.row_axes, run.shape
        if axes is None or step.values or len(out) <= axes:
            return False
        if run.view is not None and self.places[step.inputs[0]].root not in self._joint:
            return False
        if run.view is None and not run.call:
            return False
        moved = [slot for slot in step.inputs if not self.shared(slot)]
        shapes = [self._shapes[slot] for slot in moved]
        alike = all(len(shape) > axes and shape[0] == out[0] for shape in shapes)
        # Broadcast values of other ranks have rows of lanes where others have rows of one.
        ranks = {len(shape) for shape in shapes}
        return len(ranks) == 1 and alike and all(map(self.dense, moved))

    def _stacked(self, step: Step, run: Run) -> list[Call]:
        """Return the calls of a step for as many lanes at once as it can compute."""
        for parts in range(1, self.count if run.view is None else 2):
            count = -(-self.count // parts)
            calls = []
            for lane in range(0, self.count, count):
                some = min(count, self.count - lane)
                found = self._sized(step, run, some)
                if found is None:
                    break
                calls.append(Call(lane, some, found))
            else:
                return calls
        if run.view is not None:
            raise UnevenLanesError(f"{step.name!r} is a view of rows of all lanes")
        # An operator holds one size, and that was of several lanes.
        single = self._size(step, [self._shapes[slot] for slot in step.inputs])
        return [Call(lane, 1, single) for lane in range(self.count)]

    def _sized(self, step: Step, run: Run, count: int) -> Run | None:
        """Return a step sized for several lanes; None where that computes something else."""
        shapes = [self._shapes[slot] for slot in step.inputs]
        rows = [
            shape if self.shared(slot) else (shape[0] * count, *shape[1:])
            for slot, shape in zip(step.inputs, shapes, strict=True)
        ]
        try:
            found = self._size(step, rows)
        except BackendError:
            return None  # more rows than its kernel takes, or a constant with those of one lane
        same = bool(found.call) == bool(run.call) and (found.view is None) == (run.view is None)
        if found.call:  # now: the next size of an operator has other scratch memory
            self.scratch = max(self.scratch, found.scratch)
        fits = found.shape == (run.shape[0] * count, *run.shape[1:])
        return found if same and fits else None

    def _size(self, step: Step, shapes: Sequence[Shape]) -> Run:
        key = step.shared_key(shapes)
        if key is None:
            return step.size(shapes, self._sizing)
        if key not in self._known:
            self._known[key] = step.size(shapes, self._sizing)
        return self._known[key]

    def _check_held(self, step: Step) -> None:
        """Check that no operator, which holds one size, is to have several."""
        first, *others = [call.run for call in self.calls[step]]
        if not first.holds_size:
            return
        if any(run is not first and run.operator is first.operator for run in others):
            raise UnevenLanesError(f"{step.name!r} has other sizes in other lanes")


def _no_value(name: str) -> Array:
    raise LookupError(f"no step that runs for all lanes reads {name!r}")


Binds = list[tuple[int, int]]
"""Buffers of a tape, each with the offset of its first byte."""


@dataclass(frozen=True)
class _Output:
    """An output of all lanes.

    Attributes:
        name: of the value.
        slot: that holds it.
        shape: of all lanes, one behind the other along the first axis.
        lane: the shape of one.
        binds: within the array of all lanes; empty where the output is copied.
    """

    name: str
    slot: Slot
    shape: Shape
    lane: Shape
    binds: Binds


class BoundLanes:
    """A partition bound to several sets of inputs of equal shapes, but for those that lie apart.

    Args:
        inputs: slots of the inputs, by name.
        outputs: slots of the outputs, by name.
        lanes: what the shapes of each lane's inputs decide.
        apart: names of the inputs that are bound to an array for each lane: by `bind_apart`, for
            all runs to come, or those of `moving` in each run. Others are copied to lie together.
        moving: names of inputs that lie apart and are other arrays in each run.
        workspace: memory of intermediate values and scratch.
        allocator: of the outputs.
        pool: the threads.
        executor: what runs the steps.

    Attributes:
        memory: bytes of intermediate values and of scratch memory.
        plan: which steps run once for all lanes.

    Raises:
        UnevenLanesError: one tape cannot compute them.
    """

    def __init__(
        self,
        inputs: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
        lanes: Sequence[Sizes],
        apart: Collection[str],
        moving: Collection[str],
        workspace: Workspace,
        allocator: CachingAllocator,
        pool: Pool,
        executor: Executor,
    ) -> None:
        self._executor, self._allocator, self._workspace = executor, allocator, workspace
        self._inputs = dict(inputs)
        self.plan = plan = LanePlan(inputs, lanes, [*apart, *moving], pool)
        self._staged = {name: self._stage(inputs[name]) for name in inputs if self._stages(name)}
        direct = self._direct_roots(outputs)
        self._numbers: dict[tuple[Slot, int], int] = {}
        elsewhere = {*direct, *inputs.values(), *plan.constants}
        entries = [
            self._entry(step, call, elsewhere)
            for step, calls in plan.calls.items()
            for call in calls
            if call.run.call
        ]
        self._tape = executor.tape(entries, len(self._numbers))
        self._within: dict[Slot, list[tuple[int, int, int]]] = {}
        for (slot, lane), number in self._numbers.items():
            place = plan.places[slot]
            self._within.setdefault(place.root, []).append((number, lane, place.offsets[lane]))
        whole = {slot: plan.whole(slot) for slot in plan.places}
        runs = {step: calls[0].run for step, calls in plan.calls.items()}
        active = {step: run for step, run in runs.items() if run.call}
        storage = {slot: (at.root, at.offsets[0]) for slot, at in plan.places.items()}
        self._offsets, self._scratch = place_intermediates(
            active, storage, whole, outputs.values(), elsewhere
        )
        self.memory = self._scratch + plan.scratch
        self._generation = -1
        self._bind_fixed()
        self._moving = [(name, self._lane_binds(inputs[name])) for name in moving]
        self._outputs = [self._output(name, slot, direct) for name, slot in outputs.items()]

    def _stages(self, name: str) -> bool:
        slot = self._inputs[name]
        return slot not in self.plan.apart and slot not in self.plan.constants

    def _stage(self, slot: Slot) -> Array:
        """Return memory for an input of all lanes."""
        shape = self.plan.whole(slot)
        size = self.plan.size(slot) * self.plan.count
        memory = allocate_bytes(HEAP, size + self._executor.extra_bytes)
        return memory[:size].view(slot.dtype).reshape(shape)

    def _direct_roots(self, outputs: Mapping[str, Slot]) -> dict[Slot, str]:
        """Return the slots that are computed in an output's array, with its name."""
        plan, found = self.plan, dict[Slot, str]()
        active = [step for step, calls in plan.calls.items() if calls[0].run.call]
        written = {plan.places[step.output].root for step in active}
        for name, slot in outputs.items():
            place = plan.places[slot]
            whole = plan.dense(slot) and plan.size(place.root) == plan.size(slot)
            if place.root in written - found.keys() and whole:
                found[place.root] = name
        return found

    def _entry(self, step: Step, call: Call, elsewhere: Collection[Slot]) -> Entry:
        plan, run = self.plan, call.run
        used = [self._number(slot, call.lane) for slot in (*step.inputs, step.output)]
        roots = {plan.places[slot].root for slot in (*step.inputs, step.output)}
        size = sum(plan.size(slot) for slot in (*step.inputs, step.output))
        return Entry(
            call=run.call,
            inputs=tuple(used[:-1]),
            output=used[-1],
            operator=run.operator,
            params=run.params,
            # An operator of several entries is set up for other lanes by each.
            moving=call.count < plan.count or not roots.isdisjoint(elsewhere),
            name=step.name,
            alone=self._executor.runs_alone(run.call, size * call.count),
        )

    def _number(self, slot: Slot, lane: int) -> int:
        key = slot, 0 if self.plan.shared(slot) else lane
        return self._numbers.setdefault(key, len(self._numbers))

    def _binds(self, root: Slot) -> Binds:
        """Return the buffers within the memory of all lanes of a slot."""
        return [(number, offset) for number, _, offset in self._within.get(root, ())]

    def _lane_binds(self, root: Slot) -> list[Binds]:
        """Return the buffers within each lane's array of an input that lies apart, or constant."""
        found: list[Binds] = [[] for _ in range(self.plan.count)]
        for number, lane, offset in self._within.get(root, ()):
            found[lane].append((number, offset))
        return found

    def _output(self, name: str, slot: Slot, direct: Mapping[Slot, str]) -> _Output:
        plan, root = self.plan, self.plan.places[slot].root
        shape = plan.whole(slot)
        check_memory(shape, slot.dtype)
        lane = shape[1:]
        if direct.get(root) == name:
            return _Output(name, slot, shape, lane, self._binds(root))
        if root not in self._offsets and root not in plan.constants:
            raise NoLanesError(f"output {name!r} is a copy of an input, or of another output")
        return _Output(name, slot, shape, lane, [])

    def _bind_fixed(self) -> None:
        """Bind constants, and inputs that are copied to lie together."""
        plan, self._kept = self.plan, list[Array]()
        for root, arrays in plan.constants.items():
            if root not in self._within:
                continue
            kept = [self._executor.readable(array) for array in arrays]
            self._kept += kept
            for binds, array in zip(self._lane_binds(root), kept, strict=False):
                if array.nbytes:
                    self._tape.bind_all(binds, array)
        for name, staged in self._staged.items():
            if staged.nbytes:
                self._tape.bind_all(self._binds(self._inputs[name]), staged)

    def _bind_inner(self) -> None:
        memory = self._workspace.memory
        for root, start in self._offsets.items():
            for number, offset in self._binds(root):
                self._tape.bind(number, memory, start + offset)
        self._tape.bind_workspace(memory, self._scratch)
        self._generation = self._workspace.generation

    def bind_apart(self, arrays: Mapping[str, Sequence[Array]]) -> None:
        """Bind inputs that lie apart to an array for each lane, which the caller keeps alive."""
        for name, each in arrays.items():
            for binds, array in zip(self._lane_binds(self._inputs[name]), each, strict=True):
                if array.nbytes:
                    self._tape.bind_all(binds, array)

    def run(self, feeds: Sequence[Mapping[str, Array]], pool: Pool) -> list[dict[str, Array]]:
        """Run the tape; the caller has entered the workspace.

        Args:
            feeds: of each lane; the inputs that `bind_apart` has bound are not read.
            pool: the threads.

        Returns:
            The outputs of each lane: parts of arrays that have those of all lanes.

        Raises:
            BackendError: a step that failed.
        """
        if self._generation != self._workspace.generation:
            self._bind_inner()
        tape = self._tape
        for name, staged in self._staged.items():
            for lane, given in enumerate(feeds):
                staged[lane] = given[name]
        held = [
            tape.bind_readable(binds, given[name])
            for name, lanes in self._moving
            for binds, given in zip(lanes, feeds, strict=True)
        ]
        found: list[dict[str, Array]] = [{} for _ in feeds]
        self._allocator.begin()
        for output in self._outputs:
            if output.binds:
                dtype = output.slot.dtype
                size = self.plan.size(output.slot) * self.plan.count
                target, address = self._allocator.take_at(output.shape, dtype, size)
                if address is not None:
                    tape.bind_at(output.binds, address)
                else:
                    tape.bind_all(output.binds, target)
                for lane, results in enumerate(found):
                    results[output.name] = target[lane, ...]  # a view, of no axes too
        tape.run(pool)
        del held  # not before: the tape has addresses only
        for output in self._outputs:
            if not output.binds:
                for lane, results in enumerate(found):
                    results[output.name] = self._copy(output, lane)
        return found

    def _copy(self, output: _Output, lane: int) -> Array:
        slot, place = output.slot, self.plan.places[output.slot]
        size = self.plan.size(slot)
        if place.root in self.plan.constants:
            arrays = self.plan.constants[place.root]
            array = arrays[lane if len(arrays) > 1 else 0]
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[place.offsets[lane] :]
        else:
            start = self._offsets[place.root] + place.offsets[lane]
            raw = self._workspace.memory[start:]
        return raw[:size].view(slot.dtype).reshape(output.lane).copy()
