"""Shapes of results that follow from partly known operands, where ONNX's inference says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, input_of
from narrowpass_constant_folding.shapes.sizes import (
    Element,
    Size,
    broadcast,
    divide,
    is_equal,
    multiply_all,
)
from narrowpass_constant_folding.shapes.types import Dim, Dims
from narrowpass_constant_folding.shapes.values import Elements

if TYPE_CHECKING:
    from narrowpass_constant_folding.shapes.values import ShapeValues


def to_dim(element: Element) -> Dim:
    """Return what can be declared: a number that is no size, or a name of our own, cannot."""
    if isinstance(element, Size):
        symbol = element.symbol
        return None if symbol is None or symbol.startswith("?") else symbol
    return element if element is not None and element >= 0 else None


def _reshape(values: ShapeValues, node: ir.Node) -> Dims | None:
    source, target = input_of(node, 0), values.elements(input_of(node, 1))
    if source is None or target is None or target.rank != 1:
        return None
    dims = reshape_result(
        values.dims(source), target, allow_zero=bool(attribute(node, "allowzero", 0))
    )
    return tuple(map(to_dim, dims))


def reshape_result(
    source: tuple[Element, ...] | None, target: Elements, *, allow_zero: bool
) -> tuple[Element, ...]:
    """Return the shape of a Reshape's output.

    Args:
        source: the shape of what is reshaped; None where unknown.
        target: the elements of its second operand.
        allow_zero: whether 0 means zero, and not the dimension of the source at that place.
    """
    result: list[Element] = []
    for axis, item in enumerate(target.items):
        if item == 0 and not allow_zero:
            result.append(source[axis] if source is not None and axis < len(source) else None)
        else:
            result.append(item)
    if result.count(-1) == 1 and source is not None:
        place = result.index(-1)
        rest = multiply_all(item for index, item in enumerate(result) if index != place)
        whole = multiply_all(source)
        result[place] = divide(whole, rest) if is_equal(rest, 0) is not True else None
    return tuple(None if item == -1 else item for item in result)


def _expand(values: ShapeValues, node: ir.Node) -> Dims | None:
    source, target = input_of(node, 0), values.elements(input_of(node, 1))
    dims = None if source is None else values.dims(source)
    if dims is None or target is None or target.rank != 1:
        return None
    rank = max(len(dims), len(target.items))
    left = (1,) * (rank - len(dims)) + dims
    right = (1,) * (rank - len(target.items)) + target.items
    return tuple(to_dim(broadcast(*pair)) for pair in zip(left, right, strict=True))


def _constant_of_shape(values: ShapeValues, node: ir.Node) -> Dims | None:
    target = values.elements(input_of(node, 0))
    return None if target is None or target.rank != 1 else tuple(map(to_dim, target.items))


def _range(values: ShapeValues, node: ir.Node) -> Dims | None:
    start, limit, step = (values.elements(input_of(node, index)) for index in range(3))
    if start is None or limit is None or step is None or start.items != (0,) or step.items != (1,):
        return None
    return (to_dim(limit.items[0]),)


def _slice(values: ShapeValues, node: ir.Node) -> Dims | None:
    """Keep what the slice does not touch; ONNX's inference says nothing of partial operands."""
    source = input_of(node, 0)
    dims = None if source is None else values.dims(source)
    if dims is None or len(node.inputs) < 3:
        return None
    axes = values.elements(input_of(node, 3)) if input_of(node, 3) is not None else None
    starts, ends = values.elements(input_of(node, 1)), values.elements(input_of(node, 2))
    steps = values.elements(input_of(node, 4)) if input_of(node, 4) is not None else None
    if axes is None or axes.numbers is None or starts is None or ends is None:
        return None
    if steps is not None and steps.items != (1,) * len(axes.items):
        return None
    result: list[Element] = list(dims)
    for axis, start, end in zip(axes.numbers, starts.items, ends.items, strict=False):
        place = axis % len(dims) if dims else 0
        result[place] = _sliced(dims[place], start, end)
    return tuple(map(to_dim, result))


def _sliced(size: Element, start: Element, end: Element) -> Element:
    if start != 0:
        return None
    if size is not None and size == end:
        return size
    if isinstance(end, int) and end >= 1 << 31:
        return size
    return None


RULES: Mapping[str, Callable[[ShapeValues, ir.Node], Dims | None]] = MappingProxyType(
    {
        "Reshape": _reshape,
        "Expand": _expand,
        "ConstantOfShape": _constant_of_shape,
        "Range": _range,
        "Slice": _slice,
    }
)
"""The shape function of each operator's first output."""
