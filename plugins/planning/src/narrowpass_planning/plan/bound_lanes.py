"""Bound lanes: the tape of several sets of inputs, and the memory of their slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass_planning.memory.allocator import HEAP, allocate_bytes, check_memory
from narrowpass_planning.memory.caching_allocator import CachingAllocator
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Entry, Executor, Pool
from narrowpass_planning.plan.lanes import Call, LanePlan, NoLanesError
from narrowpass_planning.plan.placement import place_intermediates
from narrowpass_planning.plan.step import Array, Shape, Slot, Step

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
