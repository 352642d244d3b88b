"""How often values are read, so that a node's folding can tell what it frees."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from narrowpass_constant_folding._constants import constant_of
from narrowpass_constant_folding._results import stored_bytes
from narrowpass_constant_folding._scopes import nested_graphs, roots


class Uses:
    """How often each value is still read, kept up to date while nodes are folded."""

    def __init__(self, model: ir.Model) -> None:
        """Count all uses of a model."""
        self._left: Counter[ir.Value] = Counter()
        for root in roots(model):
            for graph in nested_graphs(root.graph):
                for node in graph:
                    self._left.update(value for value in node.inputs if value is not None)

    def sole(self, value: ir.Value, uses: int) -> bool:
        """Whether a reader with so many uses is the only one."""
        return self._left[value] == uses and not value.is_graph_output()

    def freed_by(self, read: Counter[ir.Value]) -> int:
        """Give the bytes of the constants that are unused once these uses are gone."""
        freed = 0
        for value, uses in read.items():
            tensor = constant_of(value)
            if tensor is not None and self.sole(value, uses):
                freed += stored_bytes(tensor)
        return freed

    def drop(self, read: Counter[ir.Value]) -> None:
        """Take uses away."""
        self._left.subtract(read)

    def move(self, old: ir.Value, new: ir.Value) -> None:
        """Give the uses of one value to another."""
        self._left[new] = self._left.pop(old, 0)
