"""Data movement operators: each element of a result is one of the operand's.

Quantized elements can be moved as integers, without requantization, and narrow floats without
rounding. This list is the only one.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor

DATA_MOVEMENT = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "Pad",
        "Reshape",
        "Resize",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Upsample",
    }
)
"""Operators of the default domain that move, repeat or select elements, or stay between them.

Of Concat all operands are data, of the others the first one. Not every node of these does so:
`computes` returns the reason.
"""

SELECTION = DATA_MOVEMENT - {"Concat", "Dropout", "Resize", "Upsample"}
"""Operators of `DATA_MOVEMENT` with one data operand, and no attribute that computes.

Each element of a result is one of the operand's, or the constant that a Pad adds.
"""


def data_operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the operands of a node of `DATA_MOVEMENT` whose elements it moves."""
    given = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return tuple(value for value in given if value is not None)


def computes(node: ir.Node) -> str:
    """Return why a node of `DATA_MOVEMENT` has results outside the range of its operand.

    Returns:
        The reason; empty where each element of the result is one of the operand's or, of a Resize
        or Upsample that interpolates, lies between them; or is the constant that a Pad adds.
    """
    if node.op_type in ("Resize", "Upsample"):
        return _resizing(node)
    if node.op_type == "Pad":
        return _padding(node)
    if node.op_type in ("MaxPool", "Dropout"):
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            return "its second result is read"
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if node.op_type == "Dropout" and training is not None:
            tensor = constant_tensor(training)
            if tensor is None or bool(np.ravel(tensor.numpy())[0]):
                return "it may be training"
    return ""


def _resizing(node: ir.Node) -> str:
    if node.attributes.get_string("mode", "nearest") == "cubic":
        return "mode=cubic overshoots the range of its operand"
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "coordinate_transformation_mode=tf_crop_and_resize inserts extrapolation_value"
    return ""


def _padding(node: ir.Node) -> str:
    if node.attributes.get_string("mode", "constant") != "constant":
        return ""
    filling = node.inputs[2] if len(node.inputs) > 2 else None
    if filling is None:
        return ""
    tensor = constant_tensor(filling)
    if tensor is None or filling.is_graph_input():
        return "the value that it pads with is computed"
    if not math.isfinite(float(np.ravel(tensor.numpy())[0])):
        return "the value that it pads with is not finite"
    return ""
