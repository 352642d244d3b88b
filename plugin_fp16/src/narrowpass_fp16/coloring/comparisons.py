"""What decides on numbers that nothing has rounded yet: better wide, where that costs no cast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass import Color
from narrowpass_fp16.coloring.exactness import CONTROL_FLOW
from narrowpass_fp16.graph.schemas import is_float
from narrowpass_ir.constants import constant_tensor

_DECIDES = {
    "ArgMax",
    "ArgMin",
    "Ceil",
    "Equal",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "Hardmax",
    "Less",
    "LessOrEqual",
    "Mod",
    "NonZero",
    "Round",
    "Sign",
    "TopK",
    "Unique",
}
"""Operators of which a result is another at once where an operand is rounded."""


def deciding(
    model: ir.Model, nodes: Sequence[ir.Node], color: Callable[[ir.Node], Color]
) -> set[ir.Node]:
    """Return gray nodes that decide on values no green node is behind, and what leads to them.

    Args:
        model: has the inputs.
        nodes: of the model, in order, those of subgraphs and functions included.
        color: returns the colour of a node.
    """
    exact = set(model.graph.inputs)
    found: set[ir.Node] = set()
    for node in nodes:
        if node.domain or node.op_type in CONTROL_FLOW or color(node) is Color.GREEN:
            continue
        given = [value for value in node.inputs if value is not None and is_float(value)]
        if all(value in exact or constant_tensor(value) is not None for value in given):
            exact.update(node.outputs)
            if node.op_type in _DECIDES and color(node) is Color.GRAY:
                found.add(node)
    waiting = list(found)
    while waiting:
        for value in waiting.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in found and color(producer) is Color.GRAY:
                found.add(producer)
                waiting.append(producer)
    return found
