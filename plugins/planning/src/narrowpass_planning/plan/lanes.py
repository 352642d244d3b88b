"""Lanes: several sets of inputs that one tape computes, with the weights read once.

Each session that runs together with others has a lane. The lanes of a slot lie one behind the
other, as more rows of the slot's first axis: a step whose rows are computed one by one is sized for
all of them and runs once. Other steps, such as those that read a cache, run once for each lane. So
no element is copied from lane to lane.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.placement import size_of
from narrowpass_planning.plan.step import Array, Run, Shape, Sizing, Slot, Step


class UnevenLanesError(Exception):
    """Lanes that one tape cannot compute; the message says why."""


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


class LanePlan:
    """Which steps run once for all lanes, and where the lanes of each slot lie.

    Args:
        inputs: slots of the inputs, by name.
        lanes: what the shapes of each lane's inputs decide.
        apart: names of inputs whose lanes do not lie one behind the other, such as caches.
        pool: the threads.

    Attributes:
        count: number of lanes.
        runs: of each step that is no constant, in order: one for all lanes, or one for each.
        stacked: the steps that run once for all lanes.
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
        self.runs: dict[Step, list[Run]] = {}
        self.scratch = max(lane.scratch for lane in lanes)
        self.stacked: set[Step] = set()
        self._resized: dict[Step, Run] = {}
        self._joint: set[Slot] = set()
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
        if len({(run.call, run.view is None, run.constant is None) for run in runs}) > 1:
            raise UnevenLanesError(f"{step.name!r} is not the same step in all lanes")
        stacked = self._stacked(step, runs[0]) if self._stacks(step, runs[0]) else None
        if stacked is not None:
            self.stacked.add(step)
            runs = [stacked]
        elif step in self._resized:
            runs = [self._resized[step]] * self.count
        self.runs[step] = runs
        self._check_held(step)
        self.scratch = max(self.scratch, *(run.scratch for run in runs if run.call), 0)
        if runs[0].view is not None:
            self._place_view(step, runs)
            return
        self._place_apiece(step.output)
        if step in self.stacked:
            self._joint.add(step.output)

    def _place_view(self, step: Step, runs: Sequence[Run]) -> None:
        place, offsets = self.places[step.inputs[0]], []
        for lane in range(self.count):
            if step in self.stacked:
                start = place.offsets[0] + lane * self.size(step.output)
                offsets.append(start + (runs[0].view or 0))
            else:
                offsets.append(place.offsets[lane] + (runs[lane].view or 0))
        self.places[step.output] = Place(place.root, tuple(offsets))

    def _stacks(self, step: Step, run: Run) -> bool:
        """Return whether a step is to run once, by its inputs.

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
        return bool(moved) and alike and all(map(self.dense, moved))

    def _stacked(self, step: Step, run: Run) -> Run | None:
        """Return a step sized for all lanes at once; None where that computes something else."""
        shapes = [self._shapes[slot] for slot in step.inputs]
        rows = [
            shape if self.shared(slot) else (shape[0] * self.count, *shape[1:])
            for slot, shape in zip(step.inputs, shapes, strict=True)
        ]
        try:
            found = self._size(step, rows)
        except BackendError:
            pass  # a constant that has as many rows as one lane
        else:
            same = bool(found.call) == bool(run.call) and (found.view is None) == (run.view is None)
            if same and found.shape == (run.shape[0] * self.count, *run.shape[1:]):
                return found
        if run.view is not None:
            raise UnevenLanesError(f"{step.name!r} is a view of rows of all lanes")
        # An operator holds one size, and that was of all lanes.
        self._resized[step] = self._size(step, shapes)
        return None

    def _size(self, step: Step, shapes: Sequence[Shape]) -> Run:
        alike = step.alike
        if alike is None:
            return step.size(shapes, self._sizing)
        key = type(step), alike, tuple(shapes)
        if key not in self._known:
            self._known[key] = step.size(shapes, self._sizing)
        return self._known[key]

    def _check_held(self, step: Step) -> None:
        """Check that no operator, which holds one size, is to have several."""
        first, *others = self.runs[step]
        if first.operator is None or first.params is not None:
            return
        if any(run is not first and run.operator is first.operator for run in others):
            raise UnevenLanesError(f"{step.name!r} has other sizes in other lanes")


def _no_value(name: str) -> Array:
    raise LookupError(f"no step that runs for all lanes reads {name!r}")
