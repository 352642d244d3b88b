"""Building a partition: values get slots, layouts are changed where a step needs another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.plan.partition import ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Convert, DropAxes, Observe, Reshape, Transpose
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, Perm
from narrowpass_xnn_cpu.lowered.partition import Item, LoweredPartition

Array = np.ndarray[Any, Any]

NHWC: Perm = (0, 2, 3, 1)


def identity(rank: int) -> Perm:
    """Give the order of axes as ONNX has them."""
    return tuple(range(rank))


class Builder:
    """Collects the operations of a partition.

    A value lies in one or more slots, each with the order of its axes: axis i of the slot is
    axis ``perm[i]`` of the value. A Transpose only renames axes; elements move where an operation
    needs an order that no slot has.

    Args:
        facts: of the graph.
        lower: emits an operation by the rule of its kind.
        winograd: whether convolutions may be computed by Winograd's algorithm.
        unfit: why constants of an operation do not fit its int8 kernel, by its first output.
    """

    def __init__(
        self,
        facts: Facts,
        lower: Callable[[Op, Builder], None],
        *,
        winograd: bool = True,
        unfit: Mapping[str, str] | None = None,
    ) -> None:
        self.facts = facts
        self.winograd = winograd
        self.unfit = unfit or {}
        self._lower = lower
        self.origins: dict[Slot, Op] = {}
        self._items: list[Item] = []
        self._places: list[ValueLayout] = []
        self._slots: dict[str, dict[Perm, Slot]] = {}
        self._values: dict[Slot, list[ir.Value]] = {}
        self._inputs: dict[str, Slot] = {}
        self._fixed: dict[str, Slot] = {}
        self._constants: dict[tuple[str, Perm, int], Slot] = {}
        self._made: dict[Hashable, Slot] = {}
        self._exact: dict[Slot, ir.DataType] = {}
        self._op: Op | None = None
        self.primary: dict[str, Perm] = {}

    def lower(self, op: Op) -> None:
        """Emit an operation; what is emitted stands for its nodes."""
        self._op = op
        self._lower(op, self)

    def rank(self, value: ir.Value) -> int:
        """Return the rank of a value, which the rules have checked to be known."""
        rank = self.facts.rank(value)
        if rank is None:
            raise ValueError(f"the rank of {value.name!r} is not known")
        return rank

    def layout(self, value: ir.Value) -> Perm:
        """Return the order of axes that `value` was computed in."""
        return self.primary.get(value.name or "", identity(self.rank(value)))

    def knows(self, value: ir.Value) -> bool:
        """Return whether a value is in this partition already."""
        return value.name in self._slots

    def has(self, value: ir.Value, perm: Perm) -> bool:
        """Return whether a value is there in this order without moving elements."""
        if self.facts.is_constant(value):
            return True
        return perm in self._slots.get(value.name or "", {identity(self.rank(value)): None})

    def at(self, value: ir.Value, perm: Perm | None = None, rank: int | None = None) -> Slot:
        """Return a slot that holds `value`.

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
                slot = self._insert(Convert(), [slot], Slot(name, computed))
                self.set_exact(slot, self.facts.dtype(value))
            self._place(value, slot, identity(self.rank(value)))
        known = self._slots[name]
        if perm is None:
            perm = identity(self.rank(value))
        if perm not in known:
            # From the order that it was computed in: the others are copies of that.
            source = self.primary.get(name) or next(iter(known))
            moves = tuple(source.index(axis) for axis in perm)
            slot = Slot(name, known[source].dtype)
            self._insert(Transpose(moves), [known[source]], slot, perm)
            self.set_exact(slot, self._exact.get(known[source]))
            self._place(value, slot, perm)
        return known[perm]

    def stored(self, value: ir.Value) -> Slot:
        """Return a slot that holds a value in ONNX's order and of its own type."""
        name, dtype = value.name or "", storage_dtype(self.facts, value)
        given = name not in self._slots or name in self._inputs or name in self._fixed
        if given and not self.facts.is_constant(value):
            return self._given(value)
        slot = self.at(value)
        return slot if slot.dtype == dtype else self._insert(Convert(), [slot], Slot(name, dtype))

    def _given(self, value: ir.Value) -> Slot:
        """Return the slot of a value from outside of the partition."""
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
        """Return a slot that holds these elements."""
        dense = np.ascontiguousarray(array).reshape(array.shape)
        return Slot(name, dense.dtype, dense)

    def new(self, value: ir.Value) -> Slot:
        """Return a fresh slot for a value."""
        return Slot(value.name or "", _numpy_dtype(self.facts, value))

    def scratch(self, value: ir.Value) -> Slot:
        """Return a fresh slot for an intermediate result on the way to a value."""
        return Slot(f"{value.name} (part)", _numpy_dtype(self.facts, value))

    def compute(
        self,
        computation: Computation,
        operands: Sequence[Slot],
        value: ir.Value,
        perm: Perm | None = None,
    ) -> Slot:
        """Emit a computation whose result is `value`, its axes in the order `perm`."""
        return self.emit(computation, operands, self.new(value), value, perm)

    def part(self, computation: Computation, operands: Sequence[Slot], value: ir.Value) -> Slot:
        """Emit a computation of an intermediate result on the way to `value`, of its dtype."""
        return self.emit(computation, operands, self.scratch(value))

    def emit(
        self,
        computation: Computation,
        operands: Sequence[Slot],
        output: Slot,
        value: ir.Value | None = None,
        perm: Perm | None = None,
    ) -> Slot:
        """Emit a computation; its output is `value`, laid out as `perm`, where given."""
        nodes: tuple[str, ...] = ()
        note = ""
        if self._op is not None:
            nodes = tuple(map(_name, (*self._op.superseded, *self._op.nodes)))
            note = self._op.unfit
        self._insert(computation, operands, output, self._order(value, perm), nodes, note)
        if isinstance(computation, Transpose | Reshape | DropAxes):
            self.set_exact(output, self._exact.get(operands[0]))
        if value is not None:
            self.alias(value, output, perm)
        return output

    def _order(self, value: ir.Value | None, perm: Perm | None) -> Perm:
        if value is None:
            return ()
        return identity(self.rank(value)) if perm is None else perm

    def _insert(
        self,
        computation: Computation,
        operands: Sequence[Slot],
        output: Slot,
        layout: Perm = (),
        nodes: tuple[str, ...] = (),
        note: str = "",
    ) -> Slot:
        """Append an operation; without nodes, it is a change of layout or dtype."""
        op = LoweredOp(computation, tuple(operands), output, layout, nodes, note)
        if self._op is not None:
            self.origins[output] = self._op
        self._items.append(op)
        return output

    def set_exact(self, slot: Slot, dtype: ir.DataType | None) -> None:
        """Note that all elements of a slot of float32 are representable in a narrow type."""
        if dtype in NARROW:
            self._exact[slot] = dtype

    def is_exact(self, slot: Slot, dtype: ir.DataType) -> bool:
        """Return whether all elements of a slot of float32 surely are representable in `dtype`."""
        return self._exact.get(slot) == dtype

    def derived(self, slot: Slot, key: Hashable, computation: Computation, output: Slot) -> Slot:
        """Return what a computation derives from a slot; those with the same key share it.

        It stands for no node, as a change of layout does.

        Args:
            slot: the operand.
            key: distinguishes it from all else that is derived of the slot.
            computation: what is computed, where nobody has asked before.
            output: the slot of the result then.
        """
        return self.once((slot, key), lambda: self._insert(computation, [slot], output))

    def _ops(self) -> list[LoweredOp]:
        return [item for item in self._items if isinstance(item, LoweredOp)]

    def maker(self, slot: Slot, reader: LoweredOp | None = None) -> LoweredOp | None:
        """Return the operation that computes a slot, where only one operation reads it.

        Args:
            slot: the slot; one value lies there, which one node reads.
            reader: the operation of that node, where it has one already; no other one reads the
                slot.
        """
        values = self._values.get(slot, [])
        if len(values) != 1 or self.facts.only_user(values[0]) is None:
            return None
        ops = self._ops()
        if any(slot in op.operands for op in ops if op is not reader):
            return None
        return next((op for op in ops if op.output is slot), None)

    def writers(self, slot: Slot) -> list[LoweredOp]:
        """Return the operations that write a slot, in order; none where one reads it already."""
        ops = self._ops()
        if any(slot in op.operands for op in ops):
            return []
        return [op for op in ops if op.output is slot]

    def value_of(self, slot: Slot) -> ir.Value:
        """Return a value that lies in a slot, whose operation `maker` has returned."""
        return self._values[slot][0]

    def substitute(self, old: LoweredOp, new: LoweredOp) -> None:
        """Put an operation in the place of another one with the same output."""
        self._items[self._items.index(old)] = new

    def replace(
        self,
        old: Sequence[LoweredOp],
        computation: Computation,
        operands: Sequence[Slot],
        value: ir.Value,
        perm: Perm,
    ) -> None:
        """Emit a computation in place of operations whose outputs nobody else needs.

        It comes last, since it may read what was computed after the others.
        """
        outputs = [item.output for item in old]
        self._items = [item for item in self._items if item not in old]
        self._places = [place for place in self._places if place.slot not in outputs]
        before = [name for item in old for name in item.nodes]
        own = () if self._op is None else map(_name, (*self._op.superseded, *self._op.nodes))
        nodes = tuple(dict.fromkeys((*before, *own)))
        note = next((item.note for item in old if item.note), "")
        origin = self.origins.get(old[0].output)
        slot = self._insert(computation, operands, self.new(value), perm, nodes, note)
        if origin is not None:
            self.origins[slot] = origin  # its constants may turn out not to fit
        self.alias(value, slot, perm)

    def alias(self, value: ir.Value, slot: Slot, perm: Perm | None = None) -> None:
        """Note that a slot holds `value`."""
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
        self._places.append(ValueLayout(name, slot, perm))

    def observe(self, values: Sequence[ir.Value]) -> None:
        """Emit a meter for each of the values just computed that is observed."""
        for value in values:
            name = value.name or ""
            slots = self._slots.get(name, {})
            if name in self.facts.observed and slots:
                slot = next(iter(slots.values()))
                self._insert(Observe(name), [slot], Slot(name, slot.dtype))

    def once(self, key: Hashable, make: Callable[[], Slot]) -> Slot:
        """Return the result of `make`, which is called the first time only."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def add_shape_node(self, node: ShapeNode) -> None:
        """Add shape arithmetic."""
        self._items.append(node)

    def finish(self, outputs: Sequence[ir.Value]) -> LoweredPartition:
        """Return the partition; `outputs` are the values that others read of it."""
        self._op = None
        given = {value.name or "": self.stored(value) for value in outputs}
        return LoweredPartition(
            tuple(self._items), self._inputs, given, self._fixed, tuple(self._places)
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
