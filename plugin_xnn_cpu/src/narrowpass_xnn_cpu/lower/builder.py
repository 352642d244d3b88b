"""Builder of a lowered partition: assigns slots to values and inserts changes of layout."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.graph.op import name_of
from narrowpass_planning.plan.partition import ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import (
    Convert,
    DropAxes,
    Observe,
    Reshape,
    Transpose,
    add_leading_axes,
)
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, Perm
from narrowpass_xnn_cpu.lowered.partition import Item, LoweredPartition

Array = np.ndarray[Any, Any]

NHWC: Perm = (0, 2, 3, 1)


def identity(rank: int) -> Perm:
    """Return the identity permutation: the order of axes in ONNX."""
    return tuple(range(rank))


class Builder:
    """Collects the operations of a partition.

    A value is held in one or more slots, each with its own layout: axis i of the slot is axis
    ``perm[i]`` of the value. A Transpose node only changes the permutation; elements are copied
    where an operation needs a layout that no slot has.

    Args:
        facts: of the graph.
        lower: emits an operation with the rule of its kind.
        numerics: which roundings kernels may choose.
        unfit: why constants of an operation do not fit its kernel, by `Op.unfit_key`.
    """

    def __init__(
        self,
        facts: Facts,
        lower: Callable[[Op, Builder], None],
        *,
        numerics: Numerics = DEFAULT,
        unfit: Mapping[str, str] | None = None,
    ) -> None:
        self.facts = facts
        self.numerics = numerics
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
        self._cached: dict[Hashable, Slot] = {}
        self._exact: dict[Slot, ir.DataType] = {}
        self._op: Op | None = None
        self.primary: dict[str, Perm] = {}

    def lower(self, op: Op) -> None:
        """Lower an operation; computations are emitted on behalf of its nodes."""
        self._op = op
        self._lower(op, self)

    def rank(self, value: ir.Value) -> int:
        """Return the rank of a value; the check of its rule guarantees that it is known."""
        rank = self.facts.rank(value)
        if rank is None:
            raise ValueError(f"the rank of {value.name!r} is not known")
        return rank

    def layout(self, value: ir.Value) -> Perm:
        """Return the layout that `value` was computed in."""
        return self.primary.get(value.name or "", identity(self.rank(value)))

    def has_value(self, value: ir.Value) -> bool:
        """Return whether this partition has a slot for a value already."""
        return value.name in self._slots

    def has_layout(self, value: ir.Value, perm: Perm) -> bool:
        """Return whether a value is available in this layout without a copy."""
        if self.facts.is_constant(value):
            return True
        return perm in self._slots.get(value.name or "", {identity(self.rank(value)): None})

    def slot_of(self, value: ir.Value, perm: Perm | None = None, rank: int | None = None) -> Slot:
        """Return a slot that holds `value`.

        Args:
            value: the value.
            perm: the layout of the slot; None for that of ONNX.
            rank: for constants, the rank to extend to with leading axes of size 1; `perm` has it.
        """
        if self.facts.is_constant(value):
            return self._constant(value, perm, rank)
        name = value.name or ""
        if name not in self._slots:
            slot = self._external(value)
            computed = _compute_dtype(slot.dtype)
            if computed != slot.dtype:
                slot = self._insert(Convert(), [slot], Slot(name, computed))
                self.set_exact(slot, self.facts.dtype(value))
            self._place(value, slot, identity(self.rank(value)))
        known = self._slots[name]
        if perm is None:
            perm = identity(self.rank(value))
        if perm not in known:
            # From the layout that it was computed in: slots of other layouts are copies of it.
            source = self.primary.get(name) or next(iter(known))
            moves = tuple(source.index(axis) for axis in perm)
            slot = Slot(name, known[source].dtype)
            self._insert(Transpose(moves), [known[source]], slot, perm)
            self.set_exact(slot, self._exact.get(known[source]))
            self._place(value, slot, perm)
        return known[perm]

    def stored(self, value: ir.Value) -> Slot:
        """Return a slot that holds a value in the layout and the dtype of ONNX."""
        name, dtype = value.name or "", storage_dtype(self.facts, value)
        external = name not in self._slots or name in self._inputs or name in self._fixed
        if external and not self.facts.is_constant(value):
            return self._external(value)
        slot = self.slot_of(value)
        return slot if slot.dtype == dtype else self._insert(Convert(), [slot], Slot(name, dtype))

    def _external(self, value: ir.Value) -> Slot:
        """Return the slot of a value that is computed outside of the partition."""
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
        """Return a new slot for a value."""
        return Slot(value.name or "", _numpy_dtype(self.facts, value))

    def scratch(self, value: ir.Value) -> Slot:
        """Return a new slot for an intermediate result in the computation of a value."""
        return Slot(f"{value.name} (part)", _numpy_dtype(self.facts, value))

    def compute(
        self,
        computation: Computation,
        operands: Sequence[Slot],
        value: ir.Value,
        perm: Perm | None = None,
    ) -> Slot:
        """Emit a computation of `value` in the layout `perm`; None for that of ONNX."""
        return self.emit(computation, operands, self.new(value), value, perm)

    def intermediate(
        self, computation: Computation, operands: Sequence[Slot], value: ir.Value
    ) -> Slot:
        """Emit a computation of an intermediate result for `value`, of its dtype."""
        return self.emit(computation, operands, self.scratch(value))

    def emit(
        self,
        computation: Computation,
        operands: Sequence[Slot],
        output: Slot,
        value: ir.Value | None = None,
        perm: Perm | None = None,
    ) -> Slot:
        """Emit a computation; its output holds `value`, if given, in the layout `perm`."""
        nodes: tuple[str, ...] = ()
        note = ""
        if self._op is not None:
            nodes = tuple(map(name_of, (*self._op.superseded, *self._op.nodes)))
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
        """Record that all elements of a float32 slot are representable in a narrow dtype."""
        if dtype in NARROW:
            self._exact[slot] = dtype

    def is_exact(self, slot: Slot, dtype: ir.DataType) -> bool:
        """Return whether all elements of a float32 slot are known to be exact in `dtype`."""
        return self._exact.get(slot) == dtype

    def derived(self, slot: Slot, key: Hashable, computation: Computation, output: Slot) -> Slot:
        """Return a slot that is computed from another; equal keys share one computation.

        The operation belongs to no node, as a change of layout.

        Args:
            slot: the operand.
            key: identifies the computation among all that are derived from the slot.
            computation: emitted for the first request.
            output: the slot of its result.
        """
        return self.once((slot, key), lambda: self._insert(computation, [slot], output))

    def _ops(self) -> list[LoweredOp]:
        return [item for item in self._items if isinstance(item, LoweredOp)]

    def sole_producer(self, slot: Slot, reader: LoweredOp | None = None) -> LoweredOp | None:
        """Return the operation that computes a slot, if only one operation reads it.

        Args:
            slot: the slot; None is returned unless it holds one value that one node reads.
            reader: the operation of that node, if it is emitted already.
        """
        values = self._values.get(slot, [])
        if len(values) != 1 or self.facts.only_user(values[0]) is None:
            return None
        ops = self._ops()
        if any(slot in op.operands for op in ops if op is not reader):
            return None
        return next((op for op in ops if op.output is slot), None)

    def writers(self, slot: Slot, reader: LoweredOp | None = None) -> list[LoweredOp]:
        """Return the operations that write a slot, in order; none if one reads it already.

        Args:
            slot: the slot.
            reader: an operation that may read it.
        """
        ops = self._ops()
        if any(slot in op.operands for op in ops if op is not reader):
            return []
        return [op for op in ops if op.output is slot]

    def value_of(self, slot: Slot) -> ir.Value:
        """Return a value that a slot holds; for slots whose `sole_producer` is not None."""
        return self._values[slot][0]

    def substitute(self, old: LoweredOp, new: LoweredOp) -> None:
        """Replace an operation by another one with the same output."""
        self._items[self._items.index(old)] = new

    def replace(
        self,
        old: Sequence[LoweredOp],
        computation: Computation,
        operands: Sequence[Slot],
        value: ir.Value,
        perm: Perm,
    ) -> None:
        """Replace operations, whose outputs have no other readers, by one computation.

        It is appended, since it may read slots that are computed after the replaced operations.
        """
        outputs = [item.output for item in old]
        self._items = [item for item in self._items if item not in old]
        self._places = [place for place in self._places if place.slot not in outputs]
        before = [name for item in old for name in item.nodes]
        own = () if self._op is None else map(name_of, (*self._op.superseded, *self._op.nodes))
        nodes = tuple(dict.fromkeys((*before, *own)))
        note = next((item.note for item in old if item.note), "")
        origin = self.origins.get(old[0].output)
        slot = self._insert(computation, operands, self.new(value), perm, nodes, note)
        if origin is not None:
            self.origins[slot] = origin  # packing may find that its constants do not fit
        self.alias(value, slot, perm)

    def alias(self, value: ir.Value, slot: Slot, perm: Perm | None = None) -> None:
        """Record that a slot holds `value` in the layout `perm`; None for that of ONNX."""
        order = identity(self.rank(value)) if perm is None else perm
        if len(order) != self.rank(value):
            raise BackendError(
                f"value {value.name!r} is declared with {self.rank(value)} dimensions, but its "
                f"operator computes {len(order)}"
            )
        self.primary.setdefault(value.name or "", order)
        self._place(value, slot, order)

    def _place(self, value: ir.Value, slot: Slot, perm: Perm) -> None:
        name = value.name or ""
        self._slots.setdefault(name, {})[perm] = slot
        self._values.setdefault(slot, []).append(value)
        self._places.append(ValueLayout(name, slot, perm))

    def observe(self, values: Sequence[ir.Value]) -> None:
        """Emit an `Observe` for each of the values that is to be observed."""
        for value in values:
            name = value.name or ""
            slots = self._slots.get(name, {})
            if name in self.facts.observed and slots:
                slot = next(iter(slots.values()))
                self._insert(Observe(name), [slot], Slot(name, slot.dtype))

    def once(self, key: Hashable, emit: Callable[[], Slot]) -> Slot:
        """Return the slot for a key; `emit` is called for the first request only."""
        if key not in self._cached:
            self._cached[key] = emit()
        return self._cached[key]

    def add_shape_node(self, node: ShapeNode) -> None:
        """Append shape arithmetic."""
        self._items.append(node)

    def finish(self, outputs: Sequence[ir.Value]) -> LoweredPartition:
        """Return the partition; `outputs` are the values that are read outside of it."""
        self._op = None
        stored = {value.name or "": self.stored(value) for value in outputs}
        return LoweredPartition(
            tuple(self._items), self._inputs, stored, self._fixed, tuple(self._places)
        )


def _numpy_dtype(facts: Facts, value: ir.Value) -> np.dtype[Any]:
    """Return the dtype of slots that hold a value inside of a partition."""
    return _compute_dtype(storage_dtype(facts, value))


def _compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that values of a dtype are computed in.

    uint8 is stored as int8 (XOR 0x80), so that int8 kernels compute it.
    """
    if dtype == np.uint8:
        return np.dtype(np.int8)
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def storage_dtype(facts: Facts, value: ir.Value) -> np.dtype[Any]:
    """Return the dtype of a value outside of partitions, that of the model."""
    dtype = facts.dtype(value)
    if dtype is None:
        raise ValueError(f"the element type of {value.name!r} is not known")
    return np.dtype(dtype.numpy())


def common_layout(builder: Builder, values: Sequence[ir.Value], rank: int) -> Perm:
    """Choose the layout for operands of an elementwise operator.

    It is the one that fewest operands must be transposed to. Among equals, channels-last comes
    before that of ONNX, since convolutions need it.
    """
    full = [v for v in values if builder.rank(v) == rank and not builder.facts.is_constant(v)]
    candidates = dict.fromkeys([*(builder.layout(v) for v in full), identity(rank)])

    def cost(perm: Perm) -> tuple[int, bool]:
        return sum(not builder.has_layout(v, perm) for v in full), perm == identity(rank)

    return min(candidates, key=cost)


def operand(builder: Builder, value: ir.Value, perm: Perm) -> Slot:
    """Return the slot of an operand that broadcasts against others of layout `perm`."""
    rank, full = builder.rank(value), len(perm)
    if builder.facts.is_constant(value):
        whole = identity(full) == perm or rank == 0
        return builder.slot_of(value) if whole else builder.slot_of(value, perm, rank=full)
    if rank == full:
        return builder.slot_of(value, perm)
    if rank == 0 or perm == identity(full):
        return builder.slot_of(value)
    # In the layout of ONNX leading axes may be missing; other layouts need all axes.
    full_rank = builder.intermediate(add_leading_axes(rank, full), [builder.slot_of(value)], value)
    return builder.intermediate(Transpose(perm), [full_rank], value)
