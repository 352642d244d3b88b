"""Arithmetic with neutral elements, and operators that undo themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.broadcasts import unbroadcast
from narrowpass_constant_folding.graphs.matching import dims_of, input_of, is_op
from narrowpass_constant_folding.graphs.scope import Scope

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
