"""A partition: steps that run as one tape, sized anew when shapes change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned, check_memory, readable
from narrowpass_xnn_cpu.plan.memory import Lifetime, place
from narrowpass_xnn_cpu.plan.step import Array, Run, Shape, Sizing, Slot, Step, Times, elements


@dataclass(frozen=True)
class Place:
    """Where the ONNX value `name` lies: axis i of the slot is axis ``perm[i]`` of the value."""

    name: str
    slot: Slot
    perm: tuple[int, ...]

    def logical(self, shape: Shape) -> Shape:
        """Give the value's shape from the slot's.

        Raises:
            BackendError: it has not the rank that was inferred, or declared.
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


class ShapeNode:
    """A node whose outputs follow from shapes: evaluated when these change, not in each run.

    Args:
        name: the node's.
        inputs: names of the values that it reads; empty for one that is left out.
        outputs: names of the values that it makes.
        by_shape: whether it is the inputs' shapes that it reads, not their elements.
        evaluate: gives the outputs from the inputs, or from their shapes.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        by_shape: bool,
        evaluate: Callable[[Sequence[Any]], Sequence[Array]],
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.by_shape = by_shape
        self._evaluate = evaluate
        self._known: object = None

    def update(self, shapes: Shapes) -> None:
        """Evaluate the node, unless nothing that it reads has changed."""
        if self.by_shape:
            given: list[Any] = [shapes.shape(name) for name in self.inputs]
            known: object = given
        else:
            given = [shapes.value(name) if name else None for name in self.inputs]
            known = [None if item is None else (item.shape, item.tobytes()) for item in given]
        if known == self._known:
            return
        self._known = None
        for name, value in zip(self.outputs, self._evaluate(given), strict=True):
            shapes.values[name] = value
            shapes.shapes[name] = value.shape
        self._known = known


Item = Step | ShapeNode


class Shapes:
    """Shapes of values, and values that follow from shapes, of one method; by name."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.shapes: dict[str, Shape] = {}
        self.values: dict[str, Array] = {}
        self._constants = constants

    def shape(self, name: str) -> Shape:
        """Give the shape of a value that was computed, or of an initializer."""
        found = self.shapes.get(name)
        return self._constants[name].shape if found is None else found

    def value(self, name: str) -> Array:
        """Give a value that follows from shapes, or an initializer."""
        found = self.values.get(name)
        return self._constants[name] if found is None else found


class Partition:
    """Steps that run as one tape.

    Args:
        number: of the partition within its method.
        items: steps and shape arithmetic, in an order in which they can run.
        inputs: slots that are fed, by the value's name.
        outputs: slots that are given, by the value's name.
        fixed: slots of values that follow from shapes, by the value's name.
        places: where values of the partition lie, for shape arithmetic.
    """

    def __init__(
        self,
        number: int,
        items: Sequence[Item],
        inputs: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
        fixed: Mapping[str, Slot],
        places: Sequence[Place],
    ) -> None:
        self.number = number
        self.items = tuple(items)
        self.inputs = dict(inputs)
        self.fixed = {slot: name for name, slot in fixed.items()}
        self.outputs = dict(outputs)
        self._slots = {at.name: at.slot for at in places}
        self._places: dict[Slot, list[Place]] = {}
        for at in places:
            self._places.setdefault(at.slot, []).append(at)
        made = {name for item in items if isinstance(item, ShapeNode) for name in item.outputs}
        read = [
            name
            for item in items
            for name in (item.values if isinstance(item, Step) else item.inputs)
        ]
        needed = [name for name in (*read, *fixed) if name and name not in made]
        self._needed = tuple(dict.fromkeys(needed))
        self._runs: dict[Step, tuple[object, Run]] = {}
        self._signature: object = None
        self._bound: _Bound | None = None

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [item for item in self.items if isinstance(item, Step)]

    def run(
        self,
        arrays: Mapping[str, Array],
        shapes: Shapes,
        pool: ThreadPool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> dict[str, Array]:
        """Run the partition.

        Args:
            arrays: an array for each input.
            shapes: what is known of the method's shapes; more of them after the run.
            pool: the threads.
            out: dense arrays of the outputs' types that they are written to, if they are of the
                right shape.
            times: takes the seconds of each step, where given.
        """
        signature = (
            tuple([arrays[name].shape for name in self.inputs]),
            tuple([shapes.value(n).tobytes() for n in self._needed if n in shapes.values]),
            pool.threads,
        )
        if signature != self._signature or self._bound is None:
            self._signature = None
            self._bound = self._size(arrays, shapes, pool)
            self._signature = signature
        return self._bound.run(arrays, pool, out, times)

    def _size(self, arrays: Mapping[str, Array], shapes: Shapes, pool: ThreadPool) -> _Bound:
        known: dict[Slot, Shape] = {}
        constants: dict[Slot, Array] = {}
        sizing = Sizing(pool, shapes.value)

        def note(slot: Slot, shape: Shape) -> None:
            known[slot] = shape
            for at in self._places.get(slot, ()):
                shapes.shapes[at.name] = at.logical(shape)

        def learn(slot: Slot) -> None:
            """Note the shape of what no step makes."""
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
            asked = tuple([shapes.value(name).tobytes() for name in item.values])
            key = given, asked, pool.threads
            before = self._runs.get(item)
            if before is None or before[0] != key:
                self._runs.pop(item, None)
                try:
                    run = item.size(given, sizing)
                except (BackendError, ArithmeticError, LookupError, ValueError) as error:
                    name = item.nodes[0] if item.nodes else item.output.name
                    raise BackendError(f"node {name!r}: {error}") from error
                self._runs[item] = before = key, run
            runs[item] = before[1]
            note(item.output, before[1].shape)
        for slot in self.outputs.values():
            learn(slot)
        return _Bound(self, known, runs, constants)


class _Bound:
    """A partition for certain shapes: its tape and its memory."""

    def __init__(
        self,
        partition: Partition,
        shapes: Mapping[Slot, Shape],
        runs: Mapping[Step, Run],
        constants: Mapping[Slot, Array],
    ) -> None:
        self._shapes = shapes
        self._constants = dict(constants)
        for slot in shapes:
            if slot.constant is not None:
                self._constants[slot] = slot.constant
        for step, run in runs.items():
            if run.constant is not None:
                self._constants[step.output] = run.constant
        self._storage = _storage(partition, shapes, runs)
        active = [step for step in runs if runs[step].call]
        outputs = self._direct_outputs(partition, shapes, active)
        inputs = set(partition.inputs.values())
        moving = inputs | set(outputs)
        numbers: dict[Slot, int] = {}
        entries = []
        for step in active:
            run = runs[step]
            used = [self._number(slot, numbers) for slot in (*step.inputs, step.output)]
            roots = {self._storage[slot][0] for slot in (*step.inputs, step.output)}
            entries.append(
                Entry(
                    call=run.call,
                    inputs=tuple(used[:-1]),
                    output=used[-1],
                    operator=run.operator,
                    params=run.params,
                    moving=not moving.isdisjoint(roots),
                    name=step.nodes[0] if step.nodes else step.output.name,
                )
            )
        workspace = max((e.operator.workspace for e in entries if e.operator), default=0)
        # Distinct views of one root are buffers of their own: (number, root, offset).
        self._views = [(number, *self._storage[slot]) for slot, number in numbers.items()]
        self._tape = Tape(entries, len(numbers), workspace)
        self._steps = active
        self._arena = aligned(0)
        self._bind_inner(partition, active, moving)
        self._inputs = [
            (name, slot, [(n, off) for n, root, off in self._views if root is slot])
            for name, slot in partition.inputs.items()
        ]
        self._outputs = []
        for name, slot in partition.outputs.items():
            root = self._storage[slot][0]
            direct = outputs.get(root) == name
            binds = [(n, off) for n, r, off in self._views if r is root] if direct else []
            check_memory(shapes[slot], slot.dtype)
            self._outputs.append((name, slot, shapes[slot], direct, binds))

    @property
    def memory(self) -> int:
        """Bytes of the arena and of the workspace."""
        return int(self._arena.nbytes) + self._tape.workspace

    def _number(self, slot: Slot, numbers: dict[Slot, int]) -> int:
        return numbers.setdefault(slot, len(numbers))

    def _direct_outputs(
        self, partition: Partition, shapes: Mapping[Slot, Shape], active: Sequence[Step]
    ) -> dict[Slot, str]:
        """Give the slots that are computed right in an output's array, with its name."""
        written = {self._storage[step.output][0] for step in active}
        found: dict[Slot, str] = {}
        for name, slot in partition.outputs.items():
            root, offset = self._storage[slot]
            whole = offset == 0 and elements(shapes[root]) == elements(shapes[slot])
            if root in written and whole and root not in found:
                found[root] = name
        return found

    def _bind_inner(self, partition: Partition, active: Sequence[Step], moving: set[Slot]) -> None:
        """Place inner slots in the arena, and bind them and the constants."""
        first: dict[Slot, int] = {}
        last: dict[Slot, int] = {}
        for index, step in enumerate(active):
            for slot in step.inputs:
                last[self._storage[slot][0]] = index
            root = self._storage[step.output][0]
            first.setdefault(root, index)
            last.setdefault(root, index)
        for slot in partition.outputs.values():
            last[self._storage[slot][0]] = len(active)
        lifetimes = []
        for root, index in first.items():
            if root in moving or root in self._constants:
                continue
            step = active[index]
            takes: Hashable | None = None
            for number in step.in_place:
                given = self._storage[step.inputs[number]][0]
                inner = given in first and given not in moving and last[given] == index
                alike = self._shapes[step.inputs[number]] == self._shapes[step.output]
                if inner and alike and self._bytes(given) == self._bytes(root):
                    takes = given
                    break
            lifetimes.append(Lifetime(root, self._bytes(root), index, last[root], takes))
        offsets, total = place(lifetimes)
        self._arena = aligned(total)
        self._kept: dict[Slot, Array] = {}
        for number, root, offset in self._views:
            if root in offsets:
                self._tape.bind(number, self._arena, offsets[root] + offset)
            elif root in self._constants:
                if root not in self._kept:
                    self._kept[root] = readable(self._constants[root])
                if self._kept[root].nbytes:
                    self._tape.bind(number, self._kept[root], offset)
        self._offsets = {slot: offsets[slot] for slot in first if slot in offsets}

    def _bytes(self, slot: Slot) -> int:
        return elements(self._shapes[slot]) * slot.dtype.itemsize

    def run(
        self,
        arrays: Mapping[str, Array],
        pool: ThreadPool,
        out: Mapping[str, Array],
        times: Times | None,
    ) -> dict[str, Array]:
        bind = self._tape.bind
        held = []
        given: dict[Slot, Array] = {}
        for name, slot, binds in self._inputs:
            array = arrays[name]
            given[slot] = array
            if binds and array.nbytes:
                array = readable(array)
                held.append(array)
                for number, offset in binds:
                    bind(number, array, offset)
        results: dict[str, Array] = {}
        for name, slot, shape, direct, binds in self._outputs:
            target = out.get(name) if out else None
            if target is None or target.shape != shape:
                target = np.empty(shape, slot.dtype)
            results[name] = target
            if direct:
                for number, offset in binds:
                    bind(number, target, offset)
        taken = self._tape.run(pool, timed=times is not None)
        if times is not None and taken is not None:
            for step, nanoseconds in zip(self._steps, taken, strict=True):
                times.setdefault(step, []).append(float(nanoseconds) / 1e9)
        for name, slot, _, direct, _ in self._outputs:
            if not direct:
                np.copyto(results[name], self._read(slot, given, results))
        return results

    def _read(self, slot: Slot, given: Mapping[Slot, Array], results: Mapping[str, Array]) -> Array:
        """Give the elements of a slot that is not computed in an output's array."""
        root, offset = self._storage[slot]
        shape = self._shapes[slot]
        size = elements(shape) * slot.dtype.itemsize
        if size == 0:
            return np.empty(shape, slot.dtype)
        if root in self._constants:
            raw = np.ascontiguousarray(self._constants[root]).reshape(-1).view(np.uint8)
        elif root in given:
            raw = np.ascontiguousarray(given[root]).reshape(-1).view(np.uint8)
        elif root in self._offsets:
            raw = self._arena[self._offsets[root] :]
        else:
            owner = next(
                n for n, s, _, direct, _ in self._outputs if direct and self._storage[s][0] is root
            )
            raw = results[owner].reshape(-1).view(np.uint8)
        return raw[offset : offset + size].view(slot.dtype).reshape(shape)


def _storage(
    partition: Partition, shapes: Mapping[Slot, Shape], runs: Mapping[Step, Run]
) -> dict[Slot, tuple[Slot, int]]:
    """Give, for each slot, the slot in whose memory it lies, and the byte where it starts."""
    found: dict[Slot, tuple[Slot, int]] = {slot: (slot, 0) for slot in shapes}
    for step, run in runs.items():
        if run.view is not None:
            root, offset = found[step.inputs[0]]
            found[step.output] = root, offset + run.view
    return found
