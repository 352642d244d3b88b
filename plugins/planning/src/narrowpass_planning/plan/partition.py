"""A partition: steps that run as one tape, resized when shapes change."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.memory.caching_allocator import CachingAllocator
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.bindings import Binding, Bindings, most_of
from narrowpass_planning.plan.bound import BoundPartition, Sizes
from narrowpass_planning.plan.executor import Executor, Pool
from narrowpass_planning.plan.lanes import BoundLanes
from narrowpass_planning.plan.shapes import ShapeNode, Shapes
from narrowpass_planning.plan.step import Array, Run, Shape, Sizing, Slot, Step, Times
from narrowpass_planning.state.errors import CacheFullError
from narrowpass_planning.state.operators import LENGTH


@dataclass(frozen=True)
class ValueLayout:
    """The physical layout of an ONNX value: axis i of its slot is axis ``perm[i]`` of the value.

    Attributes:
        name: of the value.
        slot: that holds it.
        perm: the permutation, such as (0, 2, 3, 1) for NHWC.
    """

    name: str
    slot: Slot
    perm: tuple[int, ...]

    def logical(self, shape: Shape) -> Shape:
        """Return the value's shape from the slot's.

        Raises:
            BackendError: the rank differs from the one that was inferred, or declared.
        """
        if len(shape) != len(self.perm):
            raise BackendError(
                f"value {self.name!r} is declared with {len(self.perm)} dimensions, but comes out "
                f"as {list(shape)}"
            )
        dims = [0] * len(shape)
        for axis, size in zip(self.perm, shape, strict=True):
            dims[axis] = size
        return tuple(dims)


Item = Step | ShapeNode


class Partition:
    """A connected set of operations that the backend runs as one tape of steps.

    Args:
        number: of the partition within its method.
        items: steps and shape arithmetic, in topological order.
        inputs: slots of the inputs, by the value's name.
        outputs: slots of the outputs, by the value's name.
        fixed: slots of values that follow from shapes, by the value's name.
        places: physical layouts of values, for shape arithmetic.
        workspace: memory of intermediate values; the caller of `run` has entered it.
        executor: what runs its steps.
    """

    def __init__(
        self,
        number: int,
        items: Sequence[Item],
        inputs: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
        fixed: Mapping[str, Slot],
        places: Sequence[ValueLayout],
        workspace: Workspace,
        executor: Executor,
    ) -> None:
        self.number = number
        self.items = tuple(items)
        self.inputs = dict(inputs)
        self.fixed = {slot: name for name, slot in fixed.items()}
        self.outputs = dict(outputs)
        self.places = tuple(places)
        self._slots = {at.name: at.slot for at in places}
        self._places: dict[Slot, list[ValueLayout]] = {}
        for at in places:
            self._places.setdefault(at.slot, []).append(at)
        computed = {name for item in items if isinstance(item, ShapeNode) for name in item.outputs}
        read = [
            name
            for item in items
            for name in (item.values if isinstance(item, Step) else item.inputs)
        ]
        needed = [name for name in (*read, *fixed) if name and name not in computed]
        self._needed = tuple(dict.fromkeys(needed))
        self._readers = self._find_readers()
        self._masked: dict[Slot, list[int]] = {}
        for index, item in enumerate(self.items):
            if isinstance(item, Step):
                for number in item.elastic:
                    self._masked.setdefault(item.inputs[number], []).append(index)
        self._runs: dict[Step, tuple[object, Run]] = {}
        self._signature: Hashable = None
        self._values: list[Array | None] = [None for _ in self._needed]
        self._bound: BoundPartition | None = None
        self._lanes: BoundLanes | None = None
        self._bindings = Bindings(most_of(len(self.items)))
        self._readable: dict[Slot, Array] = {}
        self._workspace = workspace
        self._executor = executor
        self._allocator = CachingAllocator(executor.address_of)
        self._appends = [(s, *s.appended) for s in self.steps if s.appended is not None]

    def _find_readers(self) -> dict[Slot | str | None, list[int]]:
        """Return the indices of the items that read a slot's shape, or a value by its name.

        The key None has those that read the shape of a value outside of the partition.
        """
        found: dict[Slot | str | None, list[int]] = {}
        for index, item in enumerate(self.items):
            keys: list[Slot | str | None]
            if isinstance(item, Step):
                keys = [slot for n, slot in enumerate(item.inputs) if n not in item.elastic]
                keys += item.values
            elif item.by_shape:
                keys = [self._slots.get(name) or self.inputs.get(name) for name in item.inputs]
                # The value may be one that follows from shapes, which is noted by its name.
                keys += item.inputs
            else:
                keys = list(item.inputs)
            for key in dict.fromkeys(keys):
                found.setdefault(key, []).append(index)
        return found

    @property
    def elastic(self) -> set[Slot]:
        """Slots whose last axis has an element for each row of a cache; see `Step.elastic`."""
        return {step.inputs[number] for step in self.steps for number in step.elastic}

    def reads_shape_of(self, slot: Slot) -> bool:
        """Return whether a change of a slot's shape changes steps or shape arithmetic."""
        return bool(self._readers.get(slot)) or any(
            at.name in self._readers for at in self._places.get(slot, ())
        )

    @property
    def constants(self) -> list[Array]:
        """Constants that its steps read without packing."""
        slots = {slot for step in self.steps for slot in step.inputs}
        return [slot.constant for slot in slots if slot.constant is not None]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the constants, and values that follow from shapes, that it reads."""
        return self._needed

    @property
    def bound(self) -> BoundPartition | None:
        """The binding of the last run; XNNPACK-like operators hold the sizes of no other."""
        return self._bound

    @property
    def lanes(self) -> BoundLanes | None:
        """The lanes of the last run, where that was of several; see `bound`."""
        return self._lanes

    @property
    def memory(self) -> int:
        """Bytes of intermediate values and of scratch memory, for the shapes of the last run."""
        return 0 if self._bound is None else self._bound.memory

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [item for item in self.items if isinstance(item, Step)]

    def run(
        self,
        arrays: dict[str, Any],
        shapes: Shapes,
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> None:
        """Run the partition; its outputs go to `arrays`.

        Args:
            arrays: an array for each input.
            shapes: the method's known shapes; the run adds those of the partition.
            pool: the threads.
            out: dense arrays of the outputs' types, which are written where their shapes match.
            times: collects the seconds of each step; None to measure nothing.
        """
        bound = self.bind(arrays, shapes, pool)
        if self._appends:
            self._check_rows(bound, arrays)
        arrays.update(bound.run(arrays, pool, out, times))

    def appended_rows(self) -> int:
        """Return the rows that the last run appended to each cache; 0 where there are none.

        Raises:
            BackendError: to some more than to others.
        """
        bound = self._bound
        if bound is None or not self._appends:
            return 0
        rows = {bound.shapes[step.inputs[index]][axis] for step, index, axis, _ in self._appends}
        if len(rows) != 1:
            raise BackendError(
                f"caches of one method get different numbers of rows: {sorted(rows)}"
            )
        return rows.pop()

    def _check_rows(self, bound: BoundPartition, arrays: Mapping[str, Array]) -> None:
        """Check that the new rows fit the caches, and masks the rows that there are with them.

        Raises:
            CacheFullError: the caches have no room for them.
            BackendError: a mask of other columns.
        """
        total = int(arrays[LENGTH][0]) + self.appended_rows()
        room = min(bound.shapes[step.inputs[0]][axis] for step, _, _, axis in self._appends)
        if total > room:
            raise CacheFullError(total, room)
        for slot in self.elastic:
            if bound.shapes[slot][-1] != total:
                raise BackendError(
                    f"{slot.name!r} has {bound.shapes[slot][-1]} columns, and caches {total} rows"
                )

    def bind(self, arrays: Mapping[str, Any], shapes: Shapes, pool: Pool) -> BoundPartition:
        """Return the partition bound to the shapes of these inputs; see `run`."""
        signature = pool.threads, tuple([arrays[name].shape for name in self.inputs])
        # What follows from shapes is another array where it has changed.
        values = [shapes.values.get(name) for name in self._needed]
        same = signature == self._signature and all(map(operator.is_, values, self._values))
        if not same or self._bound is None:
            before, self._bound, self._lanes = self._bound, None, None
            if any(map(operator.is_not, values, self._values)):
                before = None
            self._signature = None
            bound = self._restored(signature, values, shapes, pool)
            if bound is None:
                bound = self._bind_anew(before, signature, arrays, shapes, pool)
            self._bound = bound
            self._workspace.require(bound, bound.memory)
            self._signature, self._values = signature, values
        return self._bound

    def _restored(
        self, signature: Hashable, values: Sequence[Array | None], shapes: Shapes, pool: Pool
    ) -> BoundPartition | None:
        """Return the binding of an earlier run with these shapes; None where there is none.

        Operators that hold one size have had others since, and are sized again.
        """
        found = self._bindings.find(signature, values)
        if found is None:
            return None
        bound = found.bound
        found.restore(shapes)
        sizing = Sizing(pool, shapes.value)
        runs = {}
        for step in bound.holding:
            given = tuple([bound.shapes[slot] for slot in step.inputs])
            runs[step] = self._run_of(step, given, shapes, sizing)
        return bound if not runs or bound.grow({}, runs) else None

    def _bind_anew(
        self,
        before: BoundPartition | None,
        signature: Hashable,
        arrays: Mapping[str, Any],
        shapes: Shapes,
        pool: Pool,
    ) -> BoundPartition:
        """Return the partition bound to shapes that it has no binding for.

        The binding before grows to them where it can, unless they come again: then both are kept.
        """
        seen = self._bindings.seen(signature)
        if before is not None and not seen and self._grow(before, arrays, shapes, pool):
            self._bindings.changed(before)
            self._bindings.add(signature, None)
            return before
        bound = self._size(arrays, shapes, pool)
        names = [*self.inputs, *(at.name for at in self.places)]
        known = {name: shapes.shapes[name] for name in names if name in shapes.shapes}
        nodes = [item for item in self.items if isinstance(item, ShapeNode)]
        evaluated = [(node, node.evaluated(shapes)) for node in nodes]
        values = tuple([shapes.values.get(name) for name in self._needed])
        self._bindings.add(signature, Binding(bound, values, known, evaluated))
        return bound

    def bind_lanes(
        self, lanes: Sequence[Sizes], apart: Collection[str], moving: Collection[str], pool: Pool
    ) -> BoundLanes:
        """Return the partition bound to several sets of inputs; see `BoundLanes`.

        Args:
            lanes: sizes of each that this partition was bound to.
            apart: names of inputs; see `BoundLanes`.
            moving: names of inputs; see `BoundLanes`.
            pool: the threads.

        Raises:
            UnevenLanesError: one tape cannot compute them.
        """
        # Operators hold one size: that of the binding before is gone.
        self._bound, self._lanes, self._signature = None, None, None
        self._runs.clear()
        self._bindings.clear()
        bound = BoundLanes(
            self.inputs,
            self.outputs,
            lanes,
            apart,
            moving,
            self._workspace,
            self._allocator,
            pool,
            self._executor,
        )
        self._workspace.require(bound, bound.memory)
        self._lanes = bound
        return bound

    def _grow(
        self,
        bound: BoundPartition,
        arrays: Mapping[str, Array],
        shapes: Shapes,
        pool: Pool,
    ) -> bool:
        """Resize only steps that depend on changed inputs; return whether `bound` accepted that.

        A token of a decoder appends one row to each KV cache, and most steps keep their sizes.
        """
        if bound.threads != pool.threads:
            return False
        changed: dict[Slot, Shape] = {}
        due = list(self._readers.get(None, ()))
        names = set(self.fixed.values())

        def note(slot: Slot, shape: Shape) -> None:
            changed[slot] = shape
            for at in self._places.get(slot, ()):
                shapes.shapes[at.name] = at.logical(shape)
            if shape[:-1] != bound.shapes[slot][:-1]:
                for index in self._masked.get(slot, ()):  # more than its columns has changed
                    heapq.heappush(due, index)
            for index in self._readers.get(slot, ()):
                heapq.heappush(due, index)

        for name, slot in self.inputs.items():
            if arrays[name].shape != bound.shapes[slot]:
                note(slot, arrays[name].shape)
            shapes.shapes[name] = arrays[name].shape
        runs: dict[Step, Run] = {}
        sizing = Sizing(pool, shapes.value)
        last = -1
        while due:
            index = heapq.heappop(due)
            if index == last:
                continue
            last = index
            item = self.items[index]
            if isinstance(item, ShapeNode):
                item.update(shapes)
                if not names.isdisjoint(item.outputs):
                    return False  # its elements are computed with
                for name in item.outputs:
                    for reader in self._readers.get(name, ()):
                        heapq.heappush(due, reader)
                continue
            given = tuple(
                [changed[slot] if slot in changed else bound.shapes[slot] for slot in item.inputs]
            )
            runs[item] = run = self._run_of(item, given, shapes, sizing)
            if run.shape != bound.shapes[item.output]:
                note(item.output, run.shape)
        return bound.grow(changed, runs)

    def _run_of(self, item: Step, given: tuple[Shape, ...], shapes: Shapes, sizing: Sizing) -> Run:
        """Return a step sized for inputs of these shapes, from the cache if it is there."""
        asked = tuple([shapes.value(name).tobytes() for name in item.values])
        key = given, asked, sizing.pool.threads
        before = self._runs.get(item)
        if before is None or before[0] != key:
            self._runs.pop(item, None)
            shared = item.shared_key(given)
            same = None if shared is None else (shared, asked)
            run = None if same is None else sizing.cache.get(same)
            if run is None:
                try:
                    run = item.size(given, sizing)
                except CacheFullError:
                    raise
                except (BackendError, ArithmeticError, LookupError, ValueError) as error:
                    raise BackendError(f"node {item.name!r}: {error}") from error
                if same is not None:
                    sizing.cache[same] = run
            self._runs[item] = before = key, run
        return before[1]

    def _size(self, arrays: Mapping[str, Array], shapes: Shapes, pool: Pool) -> BoundPartition:
        known: dict[Slot, Shape] = {}
        constants: dict[Slot, Array] = {}
        sizing = Sizing(pool, shapes.value)

        def note(slot: Slot, shape: Shape) -> None:
            known[slot] = shape
            for at in self._places.get(slot, ()):
                shapes.shapes[at.name] = at.logical(shape)

        def learn(slot: Slot) -> None:
            """Note the shape of a slot that no step writes."""
            if slot in known:
                return
            if slot.constant is not None:
                note(slot, slot.constant.shape)
            elif slot in self.fixed:
                constants[slot] = shapes.value(self.fixed[slot])
                note(slot, constants[slot].shape)

        for name, slot in self.inputs.items():
            note(slot, arrays[name].shape)
            shapes.shapes[name] = arrays[name].shape
        runs: dict[Step, Run] = {}
        for item in self.items:
            if isinstance(item, ShapeNode):
                for name in item.inputs if item.by_shape else ():
                    if name in self._slots:
                        learn(self._slots[name])
                item.update(shapes)
                continue
            for slot in item.inputs:
                learn(slot)
            given = tuple([known[slot] for slot in item.inputs])
            runs[item] = run = self._run_of(item, given, shapes, sizing)
            note(item.output, run.shape)
        for slot in self.outputs.values():
            learn(slot)
        return BoundPartition(
            self.inputs,
            self.outputs,
            known,
            runs,
            constants,
            self._workspace,
            self._allocator,
            pool.threads,
            self._executor,
            self._readable,
        )
