"""What is known of values during one sweep: which are constant, and how often they are read."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from narrowpass_constant_folding.evaluation.operands import Operand, tensor_operand
from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_ir.subgraphs import nested_graphs


class Values:
    """Constants and counts of uses, kept up to date while nodes are folded."""

    def __init__(self, model: ir.Model) -> None:
        """Count all uses of a model."""
        self._left: Counter[ir.Value] = Counter()
        self._constants: dict[ir.Value, Operand] = {}
        self._held: set[ir.Value] = set()
        for root in roots(model):
            for graph in nested_graphs(root.graph):
                for node in graph:
                    self._left.update(value for value in node.inputs if value is not None)

    def constant(self, value: ir.Value) -> Operand | None:
        """Return the operand of a value that is constant, else None."""
        found = self._constants.get(value)
        if found is None:
            found = tensor_operand(value)
            if found is not None:
                self._constants[value] = found
        return found

    def mark_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Mark a value as constant that is not stored; no bytes are freed with it."""
        self._constants[value] = Operand(tensor.dtype, tuple(tensor.shape.numpy()), tensor)
        self._held.add(value)

    def is_only_reader(self, value: ir.Value, uses: int) -> bool:
        """Whether a reader with so many uses is the only one."""
        return self._left[value] == uses and not value.is_graph_output()

    def freed_by(self, read: Counter[ir.Value]) -> int:
        """Return the bytes of the constants that are unused once these uses are gone."""
        freed = 0
        for value, uses in read.items():
            if value not in self._held and self.is_only_reader(value, uses):
                operand = self.constant(value)
                freed += operand.nbytes if operand else 0
        return freed

    def remove_uses(self, read: Counter[ir.Value]) -> None:
        """Subtract uses."""
        self._left.subtract(read)

    def move(self, old: ir.Value, new: ir.Value) -> None:
        """Add the uses of one value to those of another."""
        self._left[new] = self._left.pop(old, 0)
