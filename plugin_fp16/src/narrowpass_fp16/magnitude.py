"""How large values are that constants go into unchanged: masks, most of all.

A mask of -3.4e38 that is chosen by a Where, or added, is as large behind that; a cast would make
infinity of it, and NaN of the softmax of a row that is masked altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass_fp16.schemas import FLOAT, is_float, sums_attribute

_MOVES = {
    "Abs",
    "Add",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Mul",
    "Neg",
    "Pad",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Sum",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
}
"""Operators whose result may have the largest element of an operand in it."""

_UNBOUNDED = 3.4e38
"""The largest float32, as a bound the same as none."""


def magnitudes(
    nodes: Sequence[ir.Node], largest_in: Callable[[ir.TensorProtocol], float]
) -> dict[ir.Value, float]:
    """Give the largest magnitude that constants bring into computed values.

    Args:
        nodes: of a model, in order.
        largest_in: gives the largest finite magnitude in a constant of float32.

    Returns:
        Values with such constants in them; a value is left out where there are none.
    """
    found: dict[ir.Value, float] = {}
    for node in nodes:
        if node.domain or node.op_type not in _MOVES:
            continue
        most = 0.0
        for value in node.inputs:
            if value is None or not is_float(value):
                continue
            tensor = constant_tensor(value)
            if tensor is None:
                most = max(most, found.get(value, 0.0))
            elif tensor.dtype == FLOAT:
                most = max(most, largest_in(tensor))
        if most:
            found.update(dict.fromkeys(node.outputs, most))
    return found


def number_beyond(
    node: ir.Node, version: int, smallest: float, largest: float
) -> tuple[str, float, float] | None:
    """Give an attribute whose number a narrow type cannot hold, the number, and the limit.

    Normalizations that say what they compute in take their numbers so.
    """
    if sums_attribute(node, version):
        return None
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or attribute.type != ir.AttributeType.FLOAT:
            continue
        number = abs(attribute.as_float())
        if largest < number < _UNBOUNDED:
            return name, number, largest
        if 0 < number < smallest:
            return name, number, smallest
    return None
