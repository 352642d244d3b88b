"""Nodes that compute the identity, bit for bit.

Arithmetic with neutral elements, operators that undo themselves, and layout operators that move
nothing. The table at the end has the rule of each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import small_array
from narrowpass_constant_folding.graphs.matching import (
    attribute,
    dims_of,
    input_of,
    is_op,
    only_first_output_used,
    unbroadcast,
)
from narrowpass_constant_folding.graphs.scope import Scope

if TYPE_CHECKING:
    from narrowpass_constant_folding.shapes.values import ShapeValues


_FIRST_WITH_BROADCASTING = 7
_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "BitwiseOr", "BitwiseXor"})


def neutral_source(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return the operand that ``x + 0``, ``x - 0``, ``x * 1``, ``x / 1`` or ``x ** 1`` equals.

    In floats, -0.0 + 0.0 is 0.0: there, only -0.0 may be added, and only 0.0 be subtracted.
    """
    if scope.opset < _FIRST_WITH_BROADCASTING or len(node.inputs) != 2:
        return None
    orders = ((0, 1), (1, 0)) if node.op_type in _COMMUTATIVE else ((0, 1),)
    for own, other in orders:
        source, constant = node.inputs[own], node.inputs[other]
        if source is None or constant is None or not _keeps_shape(scope, source, constant):
            continue
        if _all_are(scope, constant, _neutral_element(node.op_type)):
            return source
    return None


def _neutral_element(op_type: str) -> float:
    match op_type:
        case "Add":
            return -0.0
        case "Sub" | "BitwiseOr" | "BitwiseXor" | "Or" | "Xor":
            return 0.0
        case _:
            return 1.0


def _all_are(scope: Scope, value: ir.Value, element: float) -> bool:
    """Whether all elements of a constant are this number; zeros of floats by their sign."""
    tensor = scope.broadcast_constant(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or not tensor.size:
        return False
    array = unbroadcast(tensor.numpy())
    # Looked at first, so that weights are not read because they stand in a sum.
    first = array.flat[0]
    if not _is(first, element):
        return False
    if element == 0 and tensor.dtype.is_floating_point():
        wide = array if array.dtype.kind == "f" else array.astype(np.float32)
        return bool((wide == 0).all() and (np.signbit(wide) == np.signbit(element)).all())
    return bool((array == np.array(element).astype(array.dtype)).all())


def _is(item: object, element: float) -> bool:
    try:
        return float(item) == element  # type: ignore[arg-type]
    except TypeError:  # a complex number
        return False


def _keeps_shape(scope: Scope, source: ir.Value, constant: ir.Value) -> bool:
    """Whether broadcasting against the constant leaves the shape of `source` as it is."""
    tensor = scope.broadcast_constant(constant)
    if tensor is None:
        return False
    dims = tuple(tensor.shape.numpy())
    if not dims:
        return True
    own = dims_of(source)
    if own is None or len(dims) > len(own):
        return False
    return all(dim in (1, size) for dim, size in zip(dims[::-1], own[::-1], strict=False))


def involution_source(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return x for ``Neg(Neg(x))`` and ``Not(Not(x))``."""
    before = scope.producer(node.inputs[0])
    if before is None or not is_op(before, node.op_type) or not scope.can_edit(before):
        return None
    return before.inputs[0]


def idempotent(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return the input of an operator that changes nothing once it was applied."""
    before = scope.producer(node.inputs[0])
    return node.inputs[0] if before is not None and is_op(before, node.op_type) else None


def where_source(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return what ``Where`` chooses under a constant condition, where it has the result's shape."""
    tensor = scope.broadcast_constant(input_of(node, 0))
    if tensor is None or not tensor.size:
        return None
    array = unbroadcast(tensor.numpy())
    if array.flat[0] != array.flat[-1] or not (array.all() or not array.any()):
        return None
    yes, no = node.inputs[1], node.inputs[2]
    if yes is None or no is None:
        return None
    taken, other = (yes, no) if array.all() else (no, yes)
    own, result = dims_of(taken), dims_of(node.outputs[0])
    if own is None:
        return None
    if result is not None and own == result and None not in own:
        return taken
    shapes = [dims_of(other), tuple(tensor.shape.numpy())]
    if all(dims is not None and _within(dims, own) for dims in shapes):
        return taken
    return None


def _within(dims: tuple[int | str | None, ...], own: tuple[int | str | None, ...]) -> bool:
    if len(dims) > len(own):
        return False
    pairs = zip(dims[::-1], own[::-1], strict=False)
    return all(dim == 1 or (dim is not None and dim == size) for dim, size in pairs)


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


_FIRST_DROPOUT_WITH_TRAINING_INPUT = 12
_FIRST_DROPOUT_WITHOUT_TEST_MODE = 7

Keeps = Callable[[Scope, ir.Node], bool]
Source = Callable[[Scope, ir.Node], ir.Value | None]


def identity_source(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return the value that the first output of `node` always equals, bit for bit; None for none.

    Where other outputs are read, there is none.
    """
    if node.op_type not in _RULES or not is_op(node, node.op_type) or not node.inputs:
        return None
    if not only_first_output_used(node):
        return None
    return _RULES[node.op_type](scope, node)


def _first_if(keeps: Keeps) -> Source:
    return lambda scope, node: node.inputs[0] if keeps(scope, node) else None


def _single(scope: Scope, node: ir.Node) -> bool:
    """Whether it puts together, or takes apart, a single thing."""
    return len(node.inputs) == 1 if node.op_type != "Split" else len(node.outputs) == 1


def _always(scope: Scope, node: ir.Node) -> bool:
    return True


def _not_training(scope: Scope, node: ir.Node) -> bool:
    if scope.opset < _FIRST_DROPOUT_WITHOUT_TEST_MODE:
        return bool(attribute(node, "is_test", 0))
    if scope.opset < _FIRST_DROPOUT_WITH_TRAINING_INPUT or input_of(node, 2) is None:
        return True
    mode = small_array(scope.constant(input_of(node, 2)))
    return mode is not None and not mode.any()


_RULES: Mapping[str, Source] = MappingProxyType(
    {
        "Identity": _first_if(_always),
        "Dropout": _first_if(_not_training),
        "Transpose": _first_if(is_identity_transpose),
        "Reshape": _first_if(is_identity_reshape),
        "Expand": _first_if(is_identity_expand),
        "Slice": _first_if(is_identity_slice),
        "Pad": _first_if(is_identity_pad),
        "Tile": _first_if(is_identity_tile),
        "Where": where_source,
        **dict.fromkeys(("Squeeze", "Unsqueeze", "Flatten"), _first_if(keeps_rank)),
        **dict.fromkeys(("Resize", "Upsample"), _first_if(is_identity_resize)),
        **dict.fromkeys(("Concat", "Split", "Sum", "Max", "Min", "Mean"), _first_if(_single)),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), neutral_source),
        **dict.fromkeys(("And", "Or", "Xor", "BitwiseOr", "BitwiseXor"), neutral_source),
        **dict.fromkeys(("Neg", "Not"), involution_source),
        **dict.fromkeys(("Relu", "Abs", "Ceil", "Floor", "Round", "Sign"), idempotent),
    }
)
