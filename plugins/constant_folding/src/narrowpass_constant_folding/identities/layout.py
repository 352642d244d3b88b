"""Layout operators that compute the identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import small_array
from narrowpass_constant_folding.graphs.matching import attribute, dims_of, input_of
from narrowpass_constant_folding.graphs.scope import Scope

if TYPE_CHECKING:
    from narrowpass_constant_folding.shapes.values import ShapeValues

_END = 1 << 31


def is_identity_transpose(scope: Scope, node: ir.Node) -> bool:
    """Whether a Transpose moves no axis."""
    perm = attribute(node, "perm", None)
    if perm is not None:
        return bool(perm == tuple(range(len(perm))))
    dims = None if node.inputs[0] is None else dims_of(node.inputs[0])
    return dims is not None and len(dims) <= 1


def is_identity_reshape(scope: Scope, node: ir.Node) -> bool:
    """Whether a Reshape keeps the shape of its input.

    Where every other dimension stays, so does the one that is written as -1. (If one of the others
    is 0, -1 stands for nothing, and the Reshape would fail.)
    """
    source, target = node.inputs[0], scope.values.elements(input_of(node, 1))
    dims = None if source is None else scope.values.dims(source)
    if dims is None or target is None or len(target.items) != len(dims):
        return False
    copies = () if attribute(node, "allowzero", 0) else (0,)
    moved = [
        item
        for item, dim in zip(target.items, dims, strict=True)
        if item is None or (item != dim and item not in copies)
    ]
    return moved in ([], [-1])


def is_identity_expand(scope: Scope, node: ir.Node) -> bool:
    """Whether an Expand keeps the shape of its input."""
    source, target = node.inputs[0], scope.values.elements(input_of(node, 1))
    dims = None if source is None else scope.values.dims(source)
    if dims is None or target is None or len(target.items) > len(dims):
        return False
    pairs = zip(target.items[::-1], dims[::-1], strict=False)
    return all(item is not None and item in (1, dim) for item, dim in pairs)


def keeps_rank(scope: Scope, node: ir.Node) -> bool:
    """Whether a Squeeze or Unsqueeze keeps the rank, or a Flatten has a matrix as input."""
    source = node.inputs[0]
    before = None if source is None else dims_of(source)
    if before is None:
        return False
    if node.op_type == "Flatten":
        return len(before) == 2 and attribute(node, "axis", 1) in (1, -1)
    after = dims_of(node.outputs[0])
    return after is not None and len(before) == len(after)


def is_identity_slice(scope: Scope, node: ir.Node) -> bool:
    """Whether a Slice takes all."""
    if len(node.inputs) == 1:  # before opset 10
        starts, ends = attribute(node, "starts", ()), attribute(node, "ends", ())
        return all(start == 0 for start in starts) and all(end >= _END - 1 for end in ends)
    values = scope.values
    source = node.inputs[0]
    starts, ends = values.elements(input_of(node, 1)), values.elements(input_of(node, 2))
    dims = None if source is None else values.dims(source)
    if dims is None or starts is None or ends is None:
        return False
    axes = _axes(values, node, len(starts.items))
    steps = values.elements(input_of(node, 4)) if input_of(node, 4) is not None else None
    if axes is None or (steps is not None and set(steps.items) != {1}):
        return False
    if input_of(node, 4) is not None and steps is None:
        return False
    for axis, start, end in zip(axes, starts.items, ends.items, strict=False):
        size = dims[axis % len(dims)] if dims else None
        whole = (isinstance(end, int) and end >= _END - 1) or (end is not None and end == size)
        beyond = isinstance(end, int) and isinstance(size, int) and end >= size
        if start != 0 or not (whole or beyond):
            return False
    return True


def _axes(values: ShapeValues, node: ir.Node, count: int) -> tuple[int, ...] | None:
    if input_of(node, 3) is None:
        return tuple(range(count))
    axes = values.elements(input_of(node, 3))
    return None if axes is None else axes.numbers


def is_identity_pad(scope: Scope, node: ir.Node) -> bool:
    """Whether a Pad adds nothing."""
    if len(node.inputs) == 1:  # before opset 11
        amounts = attribute(node, "pads", attribute(node, "paddings", None))
        return amounts is not None and not any(amounts)
    array = small_array(scope.constant(input_of(node, 1)))
    return array is not None and not array.any()


def is_identity_tile(scope: Scope, node: ir.Node) -> bool:
    """Whether a Tile repeats everything once."""
    array = small_array(scope.constant(input_of(node, 1)))
    return len(node.inputs) == 2 and array is not None and bool((array == 1).all())


def is_identity_resize(scope: Scope, node: ir.Node) -> bool:
    """Whether a Resize or Upsample has scales of one and nothing else.

    Only to the nearest: other modes multiply neighbours by 0, which is NaN where they are not
    finite.
    """
    if attribute(node, "mode", "nearest") != "nearest":
        return False
    if node.op_type == "Upsample":
        given = attribute(node, "scales", None)
        array = small_array(scope.constant(input_of(node, 1)))
        scales = given if given is not None else None if array is None else tuple(array.ravel())
        return scales is not None and len(scales) > 0 and all(scale == 1 for scale in scales)
    crops = attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if input_of(node, 3) is not None or len(node.inputs) < 3 or crops:
        return False
    array = small_array(scope.constant(input_of(node, 2)))
    return array is not None and array.size > 0 and bool((array == 1).all())
