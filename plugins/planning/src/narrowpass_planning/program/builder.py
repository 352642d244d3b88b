"""A partition builder for backends that keep each value in one slot, in ONNX's order of axes."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op, name_of
from narrowpass_planning.partitioner import OpT
from narrowpass_planning.plan.executor import Executor
from narrowpass_planning.plan.partition import Item, Partition, ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Slot, Step
from narrowpass_planning.program.lowering import Source


class SlotBuilder:
    """Builds a partition from steps, with one slot for each ONNX value.

    Args:
        source: the operations that are lowered.
    """

    def __init__(self, source: Source[OpT]) -> None:
        self._facts: Facts = source.facts
        self._number, self._workspace = source.number, source.workspace
        self._outputs = source.outputs
        self._items: list[Item] = []
        self._ranks: dict[str, int] = {}
        self._slots: dict[str, Slot] = {}
        self._inputs: dict[str, Slot] = {}
        self._fixed: dict[str, Slot] = {}

    def slot(self, value: ir.Value) -> Slot:
        """Return the slot of a value: computed in the partition, a constant, or an input."""
        name = value.name or ""
        if name not in self._slots:
            slot = self._slots[name] = self._new(value)
            if slot.constant is None:
                known = self._fixed if name in self._facts.fixed else self._inputs
                known[name] = slot
        return self._slots[name]

    def output(self, op: Op) -> Slot:
        """Return a fresh slot for the output of an operation."""
        name = op.output.name or ""
        self._slots[name] = self._new(op.output)
        return self._slots[name]

    def _new(self, value: ir.Value) -> Slot:
        dtype, rank = self._facts.dtype(value), self._facts.rank(value)
        if dtype is None or rank is None:
            raise ValueError(f"the element type or the rank of {value.name!r} is not known")
        self._ranks[value.name or ""] = rank
        return Slot(value.name or "", dtype.numpy(), self._facts.constant(value))

    def emit(self, step: Step, op: Op) -> None:
        """Add the step of an operation."""
        step.nodes = tuple(map(name_of, (*op.superseded, *op.nodes)))
        self._items.append(step)

    def add_shape_node(self, node: ShapeNode) -> None:
        """Add shape arithmetic."""
        self._items.append(node)

    def finish(self, executor: Executor) -> Partition:
        """Return the partition."""
        outputs = {value.name or "": self.slot(value) for value in self._outputs}
        places = [
            ValueLayout(name, slot, tuple(range(self._ranks[name])))
            for name, slot in self._slots.items()
            if slot.constant is None
        ]
        return Partition(
            self._number,
            self._items,
            self._inputs,
            outputs,
            self._fixed,
            places,
            self._workspace,
            executor,
        )
