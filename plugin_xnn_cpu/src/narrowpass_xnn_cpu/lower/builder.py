"""Building a partition: values get slots, layouts are changed where a step needs another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.partition import Item, Partition, Place
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot, Step
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Converted, Observed, Permute, Reshaped
from narrowpass_xnn_cpu.native.executor import EXECUTOR
from narrowpass_xnn_cpu.native.weights_cache import Session

Perm = tuple[int, ...]
Array = np.ndarray[Any, Any]

NHWC: Perm = (0, 2, 3, 1)


def identity(rank: int) -> Perm:
    """Give the order of axes as ONNX has them."""
    return tuple(range(rank))


class Builder:
    """Collects the steps of a partition.

    A value lies in one or more slots, each with the order of its axes: axis i of the slot is
    axis ``perm[i]`` of the value. A Transpose only renames axes; elements move where a step asks
    for an order that no slot has.

    Args:
        facts: of the graph.
        session: of the weights cache; None to pack for each operator alone.
        winograd: whether convolutions may be computed by Winograd's algorithm.
    """

    def __init__(
        self, facts: Facts, session: Session | None = None, *, winograd: bool = True
    ) -> None:
        self.facts = facts
        self.session = session
        self.winograd = winograd
        self._items: list[Item] = []
        self._places: list[Place] = []
        self._slots: dict[str, dict[Perm, Slot]] = {}
        self._values: dict[Slot, list[ir.Value]] = {}
        self._inputs: dict[str, Slot] = {}
        self._fixed: dict[str, Slot] = {}
        self._constants: dict[tuple[str, Perm, int], Slot] = {}
        self._made: dict[Hashable, Slot] = {}
        self._exact: dict[Slot, ir.DataType] = {}
        self._op: Op | None = None
        self.primary: dict[str, Perm] = {}

    def start(self, op: Op) -> None:
        """Say which operation the next steps are of."""
        self._op = op

    def rank(self, value: ir.Value) -> int:
        """Give the rank of a value, which the rules have checked to be known."""
        rank = self.facts.rank(value)
        if rank is None:
            raise ValueError(f"the rank of {value.name!r} is not known")
        return rank

    def layout(self, value: ir.Value) -> Perm:
        """Give the order of axes that `value` was computed in."""
        return self.primary.get(value.name or "", identity(self.rank(value)))

    def knows(self, value: ir.Value) -> bool:
        """Tell whether a value is in this partition already."""
        return value.name in self._slots

    def has(self, value: ir.Value, perm: Perm) -> bool:
        """Tell whether a value can be had in this order without moving elements."""
        if self.facts.is_constant(value):
            return True
        return perm in self._slots.get(value.name or "", {identity(self.rank(value)): None})

    def at(self, value: ir.Value, perm: Perm | None = None, rank: int | None = None) -> Slot:
        """Give a slot that holds `value`.

        Args:
            value: the value.
            perm: the order of axes; None for ONNX's.
            rank: for constants, a rank to fill up to with leading axes of 1; `perm` is of that.
        """
        if self.facts.is_constant(value):
            return self._constant(value, perm, rank)
        name = value.name or ""
        if name not in self._slots:
            slot = self._given(value)
            computed = _computed(slot.dtype)
            if computed != slot.dtype:
                converted = Slot(name, computed)
                self._items.append(Converted(slot, converted))
                slot = converted
                self.set_exact(slot, self.facts.dtype(value))
            self._place(value, slot, identity(self.rank(value)))
        known = self._slots[name]
        if perm is None:
            perm = identity(self.rank(value))
        if perm not in known:
            # From the order that it was computed in: the others are copies of that.
            source = self.primary.get(name) or next(iter(known))
            slot = Slot(name, known[source].dtype)
            moves = tuple(source.index(axis) for axis in perm)
            step = Permute(known[source], slot, moves)
            self._items.append(step)
            self.set_exact(slot, self._exact.get(known[source]))
            self._place(value, slot, perm)
        return known[perm]

    def stored(self, value: ir.Value) -> Slot:
        """Give a slot that holds a value in ONNX's order and of its own type."""
        name, dtype = value.name or "", storage_dtype(self.facts, value)
        given = name not in self._slots or name in self._inputs or name in self._fixed
        if given and not self.facts.is_constant(value):
            return self._given(value)
        slot = self.at(value)
        if slot.dtype == dtype:
            return slot
        kept = Slot(name, dtype)
        self._items.append(Converted(slot, kept))
        return kept

    def _given(self, value: ir.Value) -> Slot:
        """Give the slot of a value from outside of the partition."""
        name = value.name or ""
        known = self._fixed if name in self.facts.fixed else self._inputs
        return known.setdefault(name, Slot(name, storage_dtype(self.facts, value)))

    def _constant(self, value: ir.Value, perm: Perm | None, rank: int | None) -> Slot:
        array = self.facts.wide(value)
        if array.dtype == np.uint8:
            array = (array ^ np.uint8(0x80)).view(np.int8)
        full = max(rank or 0, array.ndim)
        order = identity(full) if perm is None else perm
        key = value.name or "", order, full
        if key not in self._constants:
            shaped = array.reshape((1,) * (full - array.ndim) + array.shape).transpose(order)
            self._constants[key] = self.constant_slot(value.name or "", shaped)
        return self._constants[key]

    def constant_slot(self, name: str, array: Array) -> Slot:
        """Give a slot that holds these elements."""
        dense = np.ascontiguousarray(array).reshape(array.shape)
        return Slot(name, dense.dtype, dense)

    def new(self, value: ir.Value) -> Slot:
        """Give a fresh slot for a value."""
        return Slot(value.name or "", _numpy_dtype(self.facts, value))

    def scratch(self, value: ir.Value) -> Slot:
        """Give a fresh slot for something on the way to a value."""
        return Slot(f"{value.name} (part)", _numpy_dtype(self.facts, value))

    def emit(self, step: Step, value: ir.Value | None = None, perm: Perm | None = None) -> Slot:
        """Add a step; its output is `value`, laid out as `perm`, where given."""
        if self._op is not None:
            step.nodes = tuple(map(_name, (*self._op.superseded, *self._op.nodes)))
            if self._op.unfit and self._op.unfit not in step.precision:
                step.precision = f"{step.precision or 'float32'}: {self._op.unfit}"
        self._items.append(step)
        if isinstance(step, Permute | Reshaped):
            self.set_exact(step.output, self._exact.get(step.inputs[0]))
        if value is not None:
            self.alias(value, step.output, perm)
        return step.output

    def set_exact(self, slot: Slot, dtype: ir.DataType | None) -> None:
        """Say that all elements of a slot of float32 are such as a narrow type has."""
        if dtype in NARROW:
            self._exact[slot] = dtype

    def is_exact(self, slot: Slot, dtype: ir.DataType) -> bool:
        """Tell whether all elements of a slot of float32 surely are such as `dtype` has."""
        return self._exact.get(slot) == dtype

    def derived(self, slot: Slot, what: Hashable, make: Callable[[Slot], Step]) -> Slot:
        """Give what a step makes of a slot; all that ask for the same share it.

        The step stands for no node, as a change of layout does.

        Args:
            slot: what it is made of.
            what: tells it from all else that is made of the slot.
            make: gives the step; called where nobody has asked before.
        """

        def add() -> Slot:
            step = make(slot)
            self._items.append(step)
            return step.output

        return self.once((slot, what), add)

    def maker(self, slot: Slot, reader: Step | None = None) -> Step | None:
        """Give the step that makes a slot, where nobody but an operation of this graph needs it.

        Args:
            slot: the slot; one value lies there, which one node reads.
            reader: the step of that node, where it has one already; no other step reads the slot.
        """
        values = self._values.get(slot, [])
        if len(values) != 1 or self.facts.only_user(values[0]) is None:
            return None
        steps = [item for item in self._items if isinstance(item, Step)]
        if any(slot in step.inputs for step in steps if step is not reader):
            return None
        return next((step for step in steps if step.output is slot), None)

    def writers(self, slot: Slot) -> list[Step]:
        """Give the steps that write a slot, in order; none where a step reads it already."""
        steps = [item for item in self._items if isinstance(item, Step)]
        if any(slot in step.inputs for step in steps):
            return []
        return [step for step in steps if step.output is slot]

    def value_of(self, slot: Slot) -> ir.Value:
        """Give a value that lies in a slot, of which `maker` has given the step."""
        return self._values[slot][0]

    def replace(self, old: Sequence[Step], step: Step, value: ir.Value, perm: Perm) -> None:
        """Put a step in the place of some whose outputs nobody else needs; make `value` with it.

        It comes last, since it may read what was made after the others.
        """
        outputs = [item.output for item in old]
        self._items = [item for item in self._items if item not in old]
        self._places = [place for place in self._places if place.slot not in outputs]
        nodes = [name for item in old for name in item.nodes]
        self.emit(step, value, perm)
        step.nodes = tuple(dict.fromkeys((*nodes, *step.nodes)))

    def alias(self, value: ir.Value, slot: Slot, perm: Perm | None = None) -> None:
        """Say that a slot holds `value`."""
        order = identity(self.rank(value)) if perm is None else perm
        if len(order) != self.rank(value):
            raise BackendError(
                f"value {value.name!r} is declared with {self.rank(value)} dimensions, but its "
                f"operator gives {len(order)}"
            )
        self.primary.setdefault(value.name or "", order)
        self._place(value, slot, order)

    def _place(self, value: ir.Value, slot: Slot, perm: Perm) -> None:
        name = value.name or ""
        self._slots.setdefault(name, {})[perm] = slot
        self._values.setdefault(slot, []).append(value)
        self._places.append(Place(name, slot, perm))

    def observe(self, values: Sequence[ir.Value]) -> None:
        """Look at those of the values just computed that are observed."""
        for value in values:
            name = value.name or ""
            slots = self._slots.get(name, {})
            if name in self.facts.observed and slots:
                self._items.append(Observed(next(iter(slots.values())), name))

    def once(self, key: Hashable, make: Callable[[], Slot]) -> Slot:
        """Give what `make` gives, which is asked the first time only."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def add_shape_node(self, node: ShapeNode) -> None:
        """Add shape arithmetic."""
        self._items.append(node)

    def finish(self, number: int, outputs: Sequence[ir.Value], workspace: Workspace) -> Partition:
        """Make the partition; `outputs` are what others read of it."""
        self._op = None
        given = {value.name or "": self.stored(value) for value in outputs}
        return Partition(
            number, self._items, self._inputs, given, self._fixed, self._places, workspace, EXECUTOR
        )


def _name(node: ir.Node) -> str:
    return node.name or next((value.name for value in node.outputs if value.name), "")


def _numpy_dtype(facts: Facts, value: ir.Value) -> np.dtype[Any]:
    """Give the type that a value is computed with."""
    return _computed(storage_dtype(facts, value))


def _computed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type that elements of a type are computed with.

    Bytes from 0 to 255 are int8 with their highest bit turned: kernels for int8 take them then.
    """
    if dtype == np.uint8:
        return np.dtype(np.int8)
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def storage_dtype(facts: Facts, value: ir.Value) -> np.dtype[Any]:
    """Give the type that a value has outside of partitions."""
    dtype = facts.dtype(value)
    if dtype is None:
        raise ValueError(f"the element type of {value.name!r} is not known")
    return np.dtype(dtype.numpy())
