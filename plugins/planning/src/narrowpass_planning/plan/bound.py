"""A partition bound to shapes and memory: the tape of kernel calls that a run executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.memory.allocator import check_memory
from narrowpass_planning.memory.caching_allocator import SMALL, CachingAllocator
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.executor import Entry, Executor, Pool, Tape
from narrowpass_planning.plan.placement import place_intermediates, size_of, storage_of
from narrowpass_planning.plan.step import Array, Run, Shape, Slot, Step, Times, elements


@dataclass(frozen=True)
class OutputSource:
    """The memory of an output, for a caller that redirects it, such as a native loop.

    Attributes:
        shape: of the array.
        dtype: of the array.
        size: its bytes.
        binds: the buffers within the array, where it is computed in place; None where it is copied.
        root: the slot whose memory it is copied from; None for a value outside of the partition.
        offset: its first byte in that memory.
        fed: the input that it is a view of; empty where there is none.
        array: the bytes that it is copied from, where these are no input and no other output.
        fixed: whether those bytes never change.
    """

    shape: Shape
    dtype: np.dtype[Any]
    size: int
    binds: list[tuple[int, int]] | None = None
    root: Slot | None = None
    offset: int = 0
    fed: str = ""
    array: Array | None = None
    fixed: bool = False


@dataclass(slots=True)
class _Output:
    """An output of a run.

    Attributes:
        name: of the value.
        slot: that holds it.
        shape: of the slot.
        size: its bytes.
        direct: whether it is computed in the returned array, without a copy.
        binds: the buffers within that array, each with the offset of its first byte.
    """

    name: str
    slot: Slot
    shape: Shape
    size: int
    direct: bool
    binds: list[tuple[int, int]]


@dataclass(frozen=True)
class Placement:
    """The kernel call and the output's memory of a step of a bound partition.

    Attributes:
        shape: of the output, in its physical order of axes.
        call: of the executor; empty where nothing runs.
        memory: ``arena``, ``constant``, ``input NAME`` or ``output NAME``.
        offset: of the output's first byte there.
        scratch: bytes of scratch memory.
    """

    shape: Shape
    call: str
    memory: str
    offset: int
    scratch: int


@dataclass(frozen=True)
class Sizes:
    """What the shapes of inputs decide; stays as it is when the partition is bound to others.

    Attributes:
        shapes: of all slots.
        runs: the sized steps, in order.
        constants: the elements of slots that never change, or follow from shapes.
        scratch: bytes of scratch memory that the steps need.
    """

    shapes: Mapping[Slot, Shape]
    runs: Mapping[Step, Run]
    constants: Mapping[Slot, Array]
    scratch: int


class BoundPartition:
    """A partition specialized for the shapes of its inputs: a tape, and the memory of its slots.

    Args:
        inputs: slots of the inputs, by name.
        outputs: slots of the outputs, by name.
        shapes: of all slots.
        runs: the sized steps, in order.
        constants: the elements of slots that follow from shapes.
        workspace: memory of intermediate values and scratch.
        allocator: of the outputs.
        threads: the number of threads.
        executor: what runs the steps.
        readable: constants that never change, dense and with a tail that kernels may read; those of
            the partition, which all its bindings share.

    Attributes:
        shapes: of all slots.
        threads: the number of threads.
        memory: bytes of intermediate values and of scratch memory.
    """

    def __init__(
        self,
        inputs: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
        shapes: Mapping[Slot, Shape],
        runs: Mapping[Step, Run],
        constants: Mapping[Slot, Array],
        workspace: Workspace,
        allocator: CachingAllocator,
        threads: int,
        executor: Executor,
        readable: dict[Slot, Array],
    ) -> None:
        self._executor = executor
        self._readable = readable
        self._allocator = allocator
        self.shapes = dict(shapes)
        self.threads = threads
        self._runs = dict(runs)
        self._constants = dict(constants)
        for slot in shapes:
            if slot.constant is not None:
                self._constants[slot] = slot.constant
        for step, run in runs.items():
            if run.constant is not None:
                self._constants[step.output] = run.constant
        self._storage = storage_of(shapes, runs)
        active = [step for step in runs if runs[step].call]
        direct = self._direct_outputs(outputs, active)
        self._direct_roots = direct
        self._moving = moving = set(inputs.values()) | set(direct)
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
                    name=step.name,
                    alone=self._runs_alone(step, run, shapes),
                )
            )
        # Distinct views of one root are buffers of their own: (number, root, offset).
        self._views = [(number, *self._storage[slot]) for slot, number in numbers.items()]
        self._tape = executor.tape(entries, len(numbers))
        self._steps = active
        self._offsets, self._scratch = place_intermediates(
            {step: runs[step] for step in active},
            self._storage,
            shapes,
            outputs.values(),
            moving | self._constants.keys(),
        )
        self._bind_constants()
        # Of these shapes: the operators may be sized for others while this is kept.
        self._scratch_of = {step: runs[step].scratch for step in active}
        self.memory = self._needed_memory()
        self._workspace = workspace
        self._generation = -1
        self._grown = 0
        self._inputs = {slot: name for name, slot in inputs.items()}
        fed = [(name, self._binds(slot)) for name, slot in inputs.items()]
        self._fed = [(name, binds) for name, binds in fed if binds]
        self._outputs = []
        for name, slot in outputs.items():
            root = self._storage[slot][0]
            whole = direct.get(root) == name
            binds = self._binds(root) if whole else []
            check_memory(shapes[slot], slot.dtype)
            size = self._bytes(slot)
            self._outputs.append(_Output(name, slot, shapes[slot], size, whole, binds))
        self._copied = [output for output in self._outputs if not output.direct]
        self._direct = [output for output in self._outputs if output.direct]
        self._large = any(output.size >= SMALL for output in self._direct)

    def placements(self) -> dict[Step, Placement]:
        """Return the kernel call and the output's memory of each step, in order of execution."""
        return {step: self._placement(step, run) for step, run in self._runs.items()}

    def _placement(self, step: Step, run: Run) -> Placement:
        root, offset = self._storage[step.output]
        memory = "constant"
        if root in self._offsets:
            memory, offset = "arena", self._offsets[root] + offset
        elif root in self._inputs:
            memory = f"input {self._inputs[root]}"
        elif root in self._direct_roots:
            memory = f"output {self._direct_roots[root]}"
        return Placement(run.shape, run.call, memory, offset, run.scratch if run.call else 0)

    def _binds(self, root: Slot) -> list[tuple[int, int]]:
        """Return the buffers within the memory of a slot, with the offsets of their first bytes."""
        return [(number, offset) for number, slot, offset in self._views if slot is root]

    @property
    def holding(self) -> list[Step]:
        """The steps whose operators hold one size: that of the partition's last binding."""
        return [step for step in self._steps if self._runs[step].holds_size]

    def sizes(self) -> Sizes:
        """Return what the shapes of its inputs decide."""
        runs = dict(self._runs)
        return Sizes(self.shapes, runs, self._constants, self.memory - self._scratch)

    def _needed_memory(self) -> int:
        return self._scratch + max(self._scratch_of.values(), default=0)

    def grow(self, changed: Mapping[Slot, Shape], runs: Mapping[Step, Run]) -> bool:
        """Update sizes of slots outside of the workspace; return False where more has to change.

        Args:
            changed: the slots with new shapes.
            runs: the resized steps that read one of these, in order.
        """
        if not all(self._stays(slot, shape) for slot, shape in changed.items()):
            return False
        shapes = {**self.shapes, **changed}
        for step, run in runs.items():
            before = self._runs[step]
            if (run.call, run.view) != (before.call, before.view):
                return False
            if run.constant is not None or before.constant is not None:
                return False
            alike = [
                [sizes[step.inputs[number]] == sizes[step.output] for number in step.in_place]
                for sizes in (self.shapes, shapes)
            ]
            if alike[0] != alike[1]:
                return False
        for output in self._outputs:
            slot = output.slot
            root = self._storage[slot][0]
            if output.direct and size_of(slot, shapes) != size_of(root, shapes):
                return False
            if slot in changed:
                check_memory(shapes[slot], slot.dtype)
        for output in self._outputs:
            output.shape, output.size = shapes[output.slot], size_of(output.slot, shapes)
        self.shapes = shapes
        self._grown += 1
        self._runs.update(runs)
        for index, step in enumerate(self._steps):
            if step in runs:
                run = runs[step]
                small = self._runs_alone(step, run, shapes)
                self._tape.replace(index, run.operator, run.params, alone=small)
                self._scratch_of[step] = run.scratch
        self.memory = self._needed_memory()
        return True

    def _stays(self, slot: Slot, shape: Shape) -> bool:
        """Return whether a new shape of a slot leaves the workspace's layout as it is."""
        if self._storage[slot][0] in self._moving:
            return True
        return elements(shape) == elements(self.shapes[slot])

    def _number(self, slot: Slot, numbers: dict[Slot, int]) -> int:
        return numbers.setdefault(slot, len(numbers))

    def _direct_outputs(
        self, outputs: Mapping[str, Slot], active: Sequence[Step]
    ) -> dict[Slot, str]:
        """Return the slots that are computed in an output's array without a copy, with its name."""
        written = {self._storage[step.output][0] for step in active}
        found: dict[Slot, str] = {}
        for name, slot in outputs.items():
            root, offset = self._storage[slot]
            whole = offset == 0 and self._bytes(root) == self._bytes(slot)
            if root in written and whole and root not in found:
                found[root] = name
        return found

    def _bind_constants(self) -> None:
        self._kept: dict[Slot, Array] = {}
        for number, root, offset in self._views:
            if root in self._constants and root not in self._offsets:
                if root not in self._kept:
                    self._kept[root] = self._read_constant(root)
                if self._kept[root].nbytes:
                    self._tape.bind(number, self._kept[root], offset)

    def _read_constant(self, root: Slot) -> Array:
        if root.constant is None:
            return self._executor.readable(self._constants[root])
        if root not in self._readable:
            self._readable[root] = self._executor.readable(root.constant)
        return self._readable[root]

    def _bind_inner(self) -> None:
        """Bind intermediate slots and scratch to the workspace at its current address."""
        memory = self._workspace.memory
        for number, root, offset in self._views:
            if root in self._offsets:
                self._tape.bind(number, memory, self._offsets[root] + offset)
        self._tape.bind_workspace(memory, self._scratch)
        self._generation = self._workspace.generation

    def _runs_alone(self, step: Step, run: Run, shapes: Mapping[Slot, Shape]) -> bool:
        size = sum(size_of(slot, shapes) for slot in (*step.inputs, step.output))
        return self._executor.runs_alone(run.call, size)

    def _bytes(self, slot: Slot) -> int:
        return size_of(slot, self.shapes)

    def run(
        self,
        arrays: Mapping[str, Array],
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None,
    ) -> dict[str, Array]:
        """Run the tape; see `Partition.run`."""
        if self._generation != self._workspace.generation:
            self._bind_inner()
        tape = self._tape
        held = [tape.bind_readable(binds, arrays[name]) for name, binds in self._fed]
        results: dict[str, Array] = {}
        take = self._allocator.take_at
        self._allocator.begin()
        for output in self._outputs:
            target = out.get(output.name) if out else None
            address = None
            if target is None or target.shape != output.shape:
                target, address = take(output.shape, output.slot.dtype, output.size)
            results[output.name] = target
            if address is not None:
                tape.bind_at(output.binds, address)
            elif output.binds:
                tape.bind_all(output.binds, target)
        taken = tape.run(pool, timed=times is not None)
        del held  # not before: the tape has addresses only
        if times is not None and taken is not None:
            for step, nanoseconds in zip(self._steps, taken, strict=True):
                times.setdefault(step, []).append(float(nanoseconds) / 1e9)
        for output in self._copied:
            np.copyto(results[output.name], self._read(output.slot, arrays, results))
        return results

    def copied(self) -> list[tuple[str, Array]] | None:
        """Return the outputs that are copied, with their sources; valid until `version` changes.

        Returns:
            None where the sources are feeds, or other outputs.
        """
        known = self._constants.keys() | self._offsets.keys()
        if any(self._storage[output.slot][0] not in known for output in self._copied):
            return None
        return [(output.name, self._read(output.slot, {}, {})) for output in self._copied]

    def run_again(
        self,
        feeds: Sequence[tuple[Sequence[tuple[int, int]], Array]],
        copied: Sequence[tuple[str, Array]],
        pool: Pool,
    ) -> dict[str, Array]:
        """Run the tape again, for feeds of the same shapes.

        Args:
            feeds: for each input that is read, its buffers with their offsets, and a dense array.
            copied: as `copied` returns them.
            pool: the threads.

        Raises:
            BackendError: see `Tape.run`.
        """
        tape, empty = self._tape, np.empty
        held = [tape.bind_readable(binds, array) for binds, array in feeds]
        results: dict[str, Array] = {}
        if self._large:
            self._allocator.begin()
        for output in self._direct:
            dtype = output.slot.dtype
            if output.size < SMALL:
                results[output.name] = target = empty(output.shape, dtype)
                tape.bind_all(output.binds, target)
                continue
            target, address = self._allocator.take_at(output.shape, dtype, output.size)
            results[output.name] = target
            tape.bind_at(output.binds, address)
        tape.run(pool)
        del held  # not before: the tape has addresses only
        for name, source in copied:
            results[name] = source.copy()
        return results

    def direct(self) -> list[tuple[str, Shape, np.dtype[Any], list[tuple[int, int]]]]:
        """Return the outputs that are computed in their arrays: name, shape, type and buffers."""
        return [(out.name, out.shape, out.slot.dtype, out.binds) for out in self._direct]

    def output_sources(self) -> dict[str, OutputSource]:
        """Return the source of each output, by name; valid until the partition runs again."""
        if self._generation != self._workspace.generation:
            self._bind_inner()
        found: dict[str, OutputSource] = {}
        for output in self._outputs:
            root, offset = self._storage[output.slot]
            known = output.shape, output.slot.dtype, output.size
            if output.direct:
                found[output.name] = OutputSource(*known, output.binds, root)
                continue
            fed = self._inputs.get(root, "")
            array = None
            if root in self._constants:
                array = np.ascontiguousarray(self._constants[root]).reshape(-1).view(np.uint8)
            elif root in self._offsets:
                array = self._workspace.memory[self._offsets[root] :]
            fixed = root in self._constants
            found[output.name] = OutputSource(*known, None, root, offset, fed, array, fixed)
        return found

    @property
    def version(self) -> tuple[int, int]:
        """Changes with any shape, and with the address of the workspace."""
        return self._grown, self._workspace.generation

    @property
    def fed(self) -> Sequence[tuple[str, list[tuple[int, int]]]]:
        """The inputs that steps read, each with its buffers and their offsets."""
        return self._fed

    @property
    def tape(self) -> Tape:
        """The tape, for a caller that binds inputs and outputs itself."""
        return self._tape

    def _read(self, slot: Slot, arrays: Mapping[str, Array], results: Mapping[str, Array]) -> Array:
        """Return the elements of a slot whose memory is not an output's array."""
        root, offset = self._storage[slot]
        shape = self.shapes[slot]
        size = elements(shape) * slot.dtype.itemsize
        if size == 0:
            return np.empty(shape, slot.dtype)
        if root in self._constants:
            raw = np.ascontiguousarray(self._constants[root]).reshape(-1).view(np.uint8)
        elif root in self._inputs:
            raw = np.ascontiguousarray(arrays[self._inputs[root]]).reshape(-1).view(np.uint8)
        elif root in self._offsets:
            raw = self._workspace.memory[self._offsets[root] :]
        else:
            owner = next(o for o in self._outputs if o.direct and self._storage[o.slot][0] is root)
            raw = results[owner.name].reshape(-1).view(np.uint8)
        return raw[offset : offset + size].view(slot.dtype).reshape(shape)
