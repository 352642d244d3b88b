"""What each operator that computes with sizes does to elements that are known symbolically."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import onnx_ir as ir

from narrowpass_planning.state.symbolic import movement
from narrowpass_planning.state.symbolic.affine import Affine, Dims, index, never_negative
from narrowpass_planning.state.symbolic.arithmetic import (
    BINARY,
    as_condition,
    as_number,
    binary,
    logical_not,
)
from narrowpass_planning.state.symbolic.elements import (
    Condition,
    Element,
    Linear,
    chosen,
    simplified,
)
from narrowpass_planning.state.symbolic.tensor import (
    ONE,
    Flat,
    Tensor,
    broadcast,
    element_of,
    function,
    listed,
)


class Known(Protocol):
    """What is known of values; see `evaluation.Evaluation`."""

    def tensor(self, value: ir.Value | None) -> Tensor | None:
        """Return what is known of a value's elements; None where nothing is."""

    def flat(self, value: ir.Value | None) -> Flat | None:
        """Return what is known of a value's elements whose order is known; None for others."""

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the dimensions of a value; None where they are not affine, or no rank is known."""


_END = 1 << 31
"""Ends of slices from here on are behind all elements."""


def _shape(known: Known, node: ir.Node) -> Tensor | None:
    dims = known.dims(node.inputs[0])
    if dims is None:
        return None
    end = node.attributes.get("end")
    whole = slice(node.attributes.get_int("start", 0), end.as_int() if end else None)
    return listed(dims[whole]) if dims[whole] else None


def _binary(known: Known, node: ir.Node) -> Tensor | None:
    one, other = (known.tensor(value) for value in node.inputs)
    if one is None or other is None:
        return None
    if one.rank < 2 and other.rank < 2 and one.items and other.items:
        count = max(len(one.items), len(other.items))
        wide = [t * (count if len(t) == 1 else 1) for t in (one.items, other.items)]
        if len(wide[0]) != len(wide[1]):
            return None
        items = [binary(node.op_type, a, b) for a, b in zip(*wide, strict=True)]
        found_items = [item for item in items if item is not None]
        return listed(found_items, max(one.rank, other.rank)) if len(found_items) == count else None
    dims = broadcast(one.dims, other.dims)
    if dims is None or one.element is None or other.element is None:
        return None
    found = binary(node.op_type, one.element, other.element)
    return None if found is None else function(dims, found)


def _extreme(known: Known, node: ir.Node) -> Tensor | None:
    """Return the larger or the smaller one of two integers, where that is the same for all."""
    if len(node.inputs) != 2:
        return None
    one, other = (known.tensor(value) for value in node.inputs)
    dims = None if one is None or other is None else broadcast(one.dims, other.dims)
    if one is None or other is None or dims is None:
        return None
    a, b = one.element, other.element
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return None
    if node.op_type == "Min":
        a, b = b, a
    if never_negative(a - b, dims):
        return function(dims, a if node.op_type == "Max" else b)
    return (
        function(dims, b if node.op_type == "Max" else a) if never_negative(b - a, dims) else None
    )


def _mapped(
    known: Known, node: ir.Node, rule: Callable[[Element], Element | None]
) -> Tensor | None:
    given = known.tensor(node.inputs[0])
    if given is None:
        return None
    if given.element is None:
        items = [rule(item) for item in given.items or ()]
        found = [item for item in items if item is not None]
        return listed(found, given.rank) if len(found) == len(items) else None
    element = rule(given.element)
    return None if element is None else function(given.dims, element)


_EXACT = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE
"""Types of which sizes and positions are elements."""


def _cast(known: Known, node: ir.Node) -> Tensor | None:
    to = node.attributes.get_int("to", 0)
    if to == ir.DataType.BOOL:
        return _mapped(known, node, as_condition)

    def convert(element: Element) -> Element | None:
        if isinstance(element, Linear) and to not in (ir.DataType.INT32, ir.DataType.INT64):
            return None
        if isinstance(element, float) and ir.DataType(to).is_integer():
            if not math.isfinite(element):
                return None
            return Affine.number(int(element)) if element == int(element) else None
        if not isinstance(element, float) and ir.DataType(to) not in _EXACT:
            return None  # a size may be out of its range
        return as_number(element)

    return _mapped(known, node, convert)


def _not(known: Known, node: ir.Node) -> Tensor | None:
    return _mapped(known, node, logical_not)


def _negative(known: Known, node: ir.Node) -> Tensor | None:
    return _mapped(known, node, lambda element: binary("Sub", Affine(), element))


def _where(known: Known, node: ir.Node) -> Tensor | None:
    condition, yes, no = (known.tensor(value) for value in node.inputs)
    if condition is None or yes is None or no is None:
        return None
    if condition.element is None or yes.element is None or no.element is None:
        return _where_listed(condition, yes, no)
    test = as_condition(condition.element)
    dims = broadcast(condition.dims, yes.dims)
    dims = None if dims is None else broadcast(dims, no.dims)
    if test is None or dims is None:
        return None
    return function(dims, chosen(test, yes.element, no.element))


def _where_listed(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor | None:
    parts = condition.items, yes.items, no.items
    if parts[0] is None or parts[1] is None or parts[2] is None:
        return None
    count = max(map(len, (parts[0], parts[1], parts[2])))
    wide = [part * (count if len(part) == 1 else 1) for part in (parts[0], parts[1], parts[2])]
    found: list[Element] = []
    for test, one, other in zip(*wide, strict=True):
        decided: Condition | None = as_condition(test)
        if decided is None:
            return None
        found.append(chosen(simplified(decided, ()), one, other))
    return listed(found)


def _range(known: Known, node: ir.Node) -> Tensor | None:
    bounds = [movement.integers(known.tensor(value)) for value in node.inputs]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    (start,), (limit,), (step,) = (bound or [] for bound in bounds)
    if step != Affine.number(1):
        return None
    return function((limit - start,), Affine.of(index(1)) + start)


def _filled(known: Known, node: ir.Node) -> Tensor | None:
    dims = movement.integers(known.tensor(node.inputs[0]))
    value = node.attributes.get("value")
    element: Element = 0.0
    if value is not None:
        element = element_of(value.as_tensor().numpy().reshape(-1).tolist()[0])
    return None if dims is None else function(tuple(dims), element)


def _expand(known: Known, node: ir.Node) -> Tensor | None:
    given, target = known.tensor(node.inputs[0]), movement.integers(known.tensor(node.inputs[1]))
    return None if given is None or target is None else movement.expand(given, target)


def _reshape(known: Known, node: ir.Node) -> Tensor | Flat | None:
    flat, target = known.flat(node.inputs[0]), movement.integers(known.tensor(node.inputs[1]))
    given = known.tensor(node.inputs[0]) if flat is None else flat.tensor  # in the same order
    if given is None or target is None:
        return None
    copies = flat is None and node.attributes.get_int("allowzero", 0) == 0
    if Affine() in target and not copies:
        return None
    found = movement.reshape(given, target)
    return movement.flatten(given, target) if found is None else found


def _flatten(known: Known, node: ir.Node) -> Tensor | Flat | None:
    """Return a tensor with two axes: one has all elements, or each has one axis that is not 1."""
    given, axis = known.tensor(node.inputs[0]), node.attributes.get_int("axis", 1)
    if given is None:
        return None
    axis += given.rank if axis < 0 else 0
    parts = given.dims[:axis], given.dims[axis:]
    wide = [[dim for dim in part if dim != ONE] for part in parts]
    if all(len(part) < 2 for part in wide):
        return movement.reshape(given, [part[0] if part else ONE for part in wide])
    return movement.flatten(given, [Affine.number(-1) if part else ONE for part in wide])


def axes_of(known: Known, node: ir.Node) -> list[int] | None:
    """Return the axes of an attribute or of an input; None where there are neither."""
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    return movement.numbers(known.tensor(node.inputs[1])) if len(node.inputs) > 1 else None


def _unsqueeze(known: Known, node: ir.Node) -> Tensor | None:
    given, axes = known.tensor(node.inputs[0]), axes_of(known, node)
    return None if given is None or axes is None else movement.unsqueeze(given, axes)


def _squeeze(known: Known, node: ir.Node) -> Tensor | None:
    given = known.tensor(node.inputs[0])
    return None if given is None else movement.squeeze(given, axes_of(known, node))


def _transpose(known: Known, node: ir.Node) -> Tensor | None:
    given, perm = known.tensor(node.inputs[0]), node.attributes.get("perm")
    if given is None:
        return None
    order = range(given.rank)[::-1] if perm is None else perm.as_ints()
    return movement.transpose(given, order)


def _slice(known: Known, node: ir.Node) -> Tensor | None:
    given = known.tensor(node.inputs[0])
    if given is None or len(node.inputs) < 3:
        return None
    starts, ends = (movement.integers(known.tensor(value)) for value in node.inputs[1:3])
    if starts is None or ends is None:
        return None
    axes: list[int] | None = list(range(len(starts)))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = movement.numbers(known.tensor(node.inputs[3]))
    steps: list[int] | None = [1]
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        steps = movement.numbers(known.tensor(node.inputs[4]))
    if axes is None or steps is None or any(step != 1 for step in steps):
        return None
    found: Tensor | None = given
    for axis, start, end in zip(axes, starts, ends, strict=True):
        if found is None:
            return None
        last = found.dims[axis] if end.is_number and end.constant >= _END else end
        found = movement.part(found, axis % found.rank, start, last)
    return found


def _gather(known: Known, node: ir.Node) -> Tensor | None:
    data, indices = (known.tensor(value) for value in node.inputs)
    axis, flat = node.attributes.get_int("axis", 0), known.flat(node.inputs[0])
    if flat is not None and indices is not None:
        return movement.gather_flat(flat, indices, axis)
    return None if data is None or indices is None else movement.gather(data, indices, axis)


def _gather_nd(known: Known, node: ir.Node) -> Tensor | None:
    data, indices = (known.tensor(value) for value in node.inputs)
    if data is None or indices is None or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    return movement.gather_nd(data, indices)


def _concat(known: Known, node: ir.Node) -> Tensor | None:
    parts = [known.tensor(value) for value in node.inputs]
    given = [part for part in parts if part is not None]
    if len(given) != len(parts) or any(not part.rank for part in given):
        return None
    return movement.concat(given, node.attributes.get_int("axis", 0))


def _total(known: Known, node: ir.Node) -> Tensor | None:
    """Return the sum of a constant along the last axis."""
    given, axes = known.tensor(node.inputs[0]), axes_of(known, node)
    if given is None or not given.rank or axes not in ([-1], [given.rank - 1]):
        return None
    element = given.element
    if not isinstance(element, Affine) or not element.is_number:
        return None
    kept = (Affine.number(1),) if node.attributes.get_int("keepdims", 1) != 0 else ()
    return function((*given.dims[:-1], *kept), given.dims[-1].times(element.constant))


def _trilu(known: Known, node: ir.Node) -> Tensor | None:
    given, diagonal = known.tensor(node.inputs[0]), [Affine()]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        diagonal = movement.integers(known.tensor(node.inputs[1])) or []
    if given is None or len(diagonal) != 1:
        return None
    upper = bool(node.attributes.get_int("upper", 1))
    return movement.triangle(given, diagonal[0], upper=upper)


def _same(known: Known, node: ir.Node) -> Tensor | None:
    return known.tensor(node.inputs[0])


Rule = Callable[[Known, ir.Node], Tensor | Flat | None]
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*BINARY, "And", "Or"), _binary),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Identity": _same,
    "Max": _extreme,
    "Min": _extreme,
    "Neg": _negative,
    "Not": _not,
    "Range": _range,
    "ReduceSum": _total,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
