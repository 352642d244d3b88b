"""What is known of integer values that are computed from shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of, small_array
from narrowpass_constant_folding.graphs.matching import dims_of, input_of, is_op
from narrowpass_constant_folding.shapes.elements import INTEGERS, MOST_ELEMENTS, RULES, Elements
from narrowpass_constant_folding.shapes.sizes import Element, named


class ShapeValues:
    """Works out elements of values when asked, from the shapes that the model declares now.

    An answer is remembered. What it says stays true while the model is rewritten, since rewrites
    keep values what they are; but it may say less than could be known afterwards.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: dict[ir.Value, Elements | None] = {}
        self._unnamed: dict[tuple[ir.Value, int], str] = {}

    def dims(self, value: ir.Value) -> tuple[Element, ...] | None:
        """Return the shape of a value; a dimension without a name gets one of its own."""
        dims = dims_of(value)
        if dims is None:
            return None
        return tuple(
            dim if isinstance(dim, int) else named(dim or self._name(value, axis))
            for axis, dim in enumerate(dims)
        )

    def elements(self, value: ir.Value | None) -> Elements | None:
        """Return the elements of an integer value of rank 0 or 1; None where nothing is known."""
        if value is None:
            return None
        # Producers first, without recursion: chains of shape arithmetic may be long.
        waiting = [value]
        while waiting:
            current = waiting[-1]
            if current in self._known:
                waiting.pop()
                continue
            node = current.producer()
            if constant_of(current) is not None or node is None or node.op_type not in RULES:
                self._known[current] = _constant(current)
                continue
            missing = [operand for operand in _operands(node) if operand not in self._known]
            if missing:
                waiting.extend(missing)
                continue
            self._known[current] = self._apply(node)
        return self._known[value]

    def _apply(self, node: ir.Node) -> Elements | None:
        if not is_op(node, *RULES) or not node.outputs:
            return None
        found = RULES[node.op_type](self, node)
        if found is None or len(found.items) > MOST_ELEMENTS:
            return None
        # What does not fit wraps around: that is left to what computes it.
        limit = 1 << (63 if node.outputs[0].dtype == ir.DataType.INT64 else 31)
        if all(not isinstance(item, int) or -limit <= item < limit for item in found.items):
            return found
        return None

    def has_rule(self, node: ir.Node) -> bool:
        """Whether elements of the node's output may be known."""
        return node.op_type in RULES and not node.domain and len(node.outputs) == 1

    def operand(self, node: ir.Node, index: int) -> Elements | None:
        """Return what is known already of an input of a node."""
        value = input_of(node, index)
        return None if value is None else self._known.get(value)

    def _name(self, value: ir.Value, axis: int) -> str:
        return self._unnamed.setdefault((value, axis), f"?{len(self._unnamed)}")


def _operands(node: ir.Node) -> Sequence[ir.Value]:
    if node.op_type in ("Shape", "Size"):
        return ()
    return [value for value in node.inputs if value is not None]


def _constant(value: ir.Value) -> Elements | None:
    tensor = constant_of(value)
    if tensor is None or tensor.dtype not in INTEGERS or len(tensor.shape) > 1:
        return None
    if tensor.size > MOST_ELEMENTS:
        return None
    array = small_array(tensor)
    if array is None:
        return None
    return Elements(array.ndim, tuple(int(item) for item in array.ravel()))
