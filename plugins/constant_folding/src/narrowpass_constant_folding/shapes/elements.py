"""Propagation of integer elements, computed from shapes, through each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, input_of
from narrowpass_constant_folding.shapes.sizes import (
    Element,
    add,
    divide,
    is_equal,
    is_less,
    multiply,
    multiply_all,
    subtract,
)

MOST_ELEMENTS = 64
"""Longer values are no shapes."""

INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
"""The types of values whose elements are followed."""


@dataclass(frozen=True)
class Elements:
    """The elements of a value of rank 0 or 1.

    Attributes:
        rank: 0 or 1.
        items: the elements; one where the rank is 0. Booleans are 0 and 1.
    """

    rank: int
    items: tuple[Element, ...]

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The elements, where all are known numbers."""
        known = tuple(item for item in self.items if isinstance(item, int))
        return known if len(known) == len(self.items) else None


class Operands(Protocol):
    """What is known of the operands of a node."""

    def dims(self, value: ir.Value) -> tuple[Element, ...] | None:
        """Return the shape of a value."""

    def operand(self, node: ir.Node, index: int) -> Elements | None:
        """Return the elements of an operand; None where nothing is known."""


def _shape(values: Operands, node: ir.Node) -> Elements | None:
    source = node.inputs[0]
    dims = None if source is None else values.dims(source)
    if dims is None:
        return None
    return Elements(1, dims[attribute(node, "start", 0) : attribute(node, "end", None)])


def _size(values: Operands, node: ir.Node) -> Elements | None:
    source = node.inputs[0]
    dims = None if source is None else values.dims(source)
    return None if dims is None else Elements(0, (multiply_all(dims),))


def _gather(values: Operands, node: ir.Node) -> Elements | None:
    data, indices = values.operand(node, 0), values.operand(node, 1)
    if data is None or indices is None or data.rank != 1 or indices.numbers is None:
        return None
    count = len(data.items)
    if any(not -count <= index < count for index in indices.numbers):
        return None
    return Elements(indices.rank, tuple(data.items[index] for index in indices.numbers))


def _slice(values: Operands, node: ir.Node) -> Elements | None:
    data = values.operand(node, 0)
    if data is None or data.rank != 1:
        return None
    bounds: list[tuple[int, ...] | None]
    if len(node.inputs) == 1:  # before opset 10
        bounds = [attribute(node, "starts", ()), attribute(node, "ends", ())]
        bounds += [attribute(node, "axes", (0,)), (1,)]
    else:
        parts = [values.operand(node, index) for index in range(1, len(node.inputs))]
        bounds = [None if part is None else part.numbers for part in parts]
        bounds += [None] * (4 - len(bounds))
        given = [input_of(node, index) is not None for index in range(1, 5)]
        if any(present and bound is None for present, bound in zip(given, bounds, strict=True)):
            return None
    starts, ends = bounds[0] or (), bounds[1] or ()
    axes, steps = bounds[2] or (0,), bounds[3] or (1,)
    if not len(starts) == len(ends) == len(axes) == len(steps) == 1:
        return None
    if axes[0] not in (0, -1) or steps[0] == 0:
        return None
    start, stop, step = starts[0], ends[0], steps[0]
    count = len(data.items)
    if step < 0:
        # Before the first element lies the first one, where Python's slices are empty.
        first, last = max(start, -count), stop if stop >= -count else None
        return Elements(1, data.items[first:last:step])
    return Elements(1, data.items[start:stop:step])


def _concat(values: Operands, node: ir.Node) -> Elements | None:
    parts = [values.operand(node, index) for index in range(len(node.inputs))]
    items: list[Element] = []
    for part in parts:
        if part is None or part.rank != 1:
            return None
        items.extend(part.items)
    return Elements(1, tuple(items))


def _reshape(values: Operands, node: ir.Node) -> Elements | None:
    data = values.operand(node, 0)
    if data is None:
        return None
    if node.op_type in ("Squeeze", "Unsqueeze"):
        rank = 0 if node.op_type == "Squeeze" else 1
        # A Squeeze without axes takes them all; axes that are fed may be none, or two.
        alike = len(data.items) == 1 and data.rank == 1 - rank
        axes = _axes(values, node)
        known = len(axes) == 1 if axes is not None else rank == 0 and input_of(node, 1) is None
        return Elements(rank, data.items) if alike and known else None
    target = values.operand(node, 1)
    if target is None or target.numbers is None:
        return None
    if target.numbers in ((-1,), (len(data.items),)):
        return Elements(1, data.items)
    return Elements(0, data.items) if not target.items and len(data.items) == 1 else None


def _axes(values: Operands, node: ir.Node) -> Sequence[Element] | None:
    """Return the axes of a Squeeze or Unsqueeze, if they are known."""
    if input_of(node, 1) is None:
        axes: Sequence[int] | None = attribute(node, "axes", None)
        return axes
    found = values.operand(node, 1)
    return None if found is None else found.numbers


def _cast(values: Operands, node: ir.Node) -> Elements | None:
    data = values.operand(node, 0)
    if data is None:
        return None
    match attribute(node, "to", 0):
        case ir.DataType.INT64:
            return data
        case ir.DataType.INT32:
            small = all(not isinstance(item, int) or abs(item) < 1 << 31 for item in data.items)
            return data if small else None
        case _:
            return None


def _same(values: Operands, node: ir.Node) -> Elements | None:
    return values.operand(node, 0)


def _floor_divide(left: Element, right: Element) -> Element:
    if isinstance(left, int) and isinstance(right, int):
        # ONNX rounds towards zero; a negative operand is left to what computes it.
        return left // right if right > 0 and left >= 0 else None
    return divide(left, right)


def _remainder(left: Element, right: Element) -> Element:
    if isinstance(left, int) and isinstance(right, int):
        return left % right if right > 0 and left >= 0 else None
    return 0 if divide(left, right) is not None else None


def _least(left: Element, right: Element) -> Element:
    less = is_less(left, right)
    if less is None:
        return None
    return left if less else right


def _greatest(left: Element, right: Element) -> Element:
    less = is_less(left, right)
    if less is None:
        return None
    return right if less else left


def _truth(known: bool | None) -> Element:
    return None if known is None else int(known)


def _negated(known: bool | None) -> bool | None:
    return None if known is None else not known


_BINARY: Mapping[str, Callable[[Element, Element], Element]] = MappingProxyType(
    {
        "Add": add,
        "Sub": subtract,
        "Mul": multiply,
        "Div": _floor_divide,
        "Mod": _remainder,
        "Min": _least,
        "Max": _greatest,
        "Equal": lambda left, right: _truth(is_equal(left, right)),
        "Less": lambda left, right: _truth(is_less(left, right)),
        "Greater": lambda left, right: _truth(is_less(right, left)),
        "LessOrEqual": lambda left, right: _truth(_negated(is_less(right, left))),
        "GreaterOrEqual": lambda left, right: _truth(_negated(is_less(left, right))),
    }
)


def _binary(values: Operands, node: ir.Node) -> Elements | None:
    left, right = values.operand(node, 0), values.operand(node, 1)
    if left is None or right is None or len(node.inputs) != 2:
        return None
    if "axis" in node.attributes or "broadcast" in node.attributes:
        return None  # before opset 7
    pairs = _aligned(left, right)
    if pairs is None:
        return None
    operation = _BINARY[node.op_type]
    return Elements(max(left.rank, right.rank), tuple(map(operation, *pairs)))


def _aligned(*parts: Elements) -> list[tuple[Element, ...]] | None:
    """Return the elements of all, those of single ones repeated; None where they do not fit."""
    length = max((len(part.items) for part in parts if len(part.items) != 1), default=1)
    if any(len(part.items) not in (1, length) for part in parts):
        return None
    if any(not part.items for part in parts):
        return None
    return [part.items * length if len(part.items) == 1 else part.items for part in parts]


def _where(values: Operands, node: ir.Node) -> Elements | None:
    condition, yes, no = (values.operand(node, index) for index in range(3))
    if condition is None or yes is None or no is None:
        return None
    columns = _aligned(condition, yes, no)
    if columns is None:
        return None
    items = []
    for chosen, first, second in zip(*columns, strict=True):
        if first == second:
            items.append(first)
        elif isinstance(chosen, int):
            items.append(first if chosen else second)
        else:
            items.append(None)
    return Elements(max(condition.rank, yes.rank, no.rank), tuple(items))


def _filled(values: Operands, node: ir.Node) -> Elements | None:
    shape = values.operand(node, 0)
    fill = node.attributes.get("value")
    if shape is None or shape.numbers is None or len(shape.numbers) > 1 or fill is None:
        return None
    tensor = fill.as_tensor()
    if tensor.dtype not in INTEGERS or max(shape.numbers, default=1) > MOST_ELEMENTS:
        return None
    item = int(tensor.numpy().ravel()[0])
    count = shape.numbers[0] if shape.numbers else 1
    return Elements(len(shape.numbers), (item,) * count)


def _reduced(values: Operands, node: ir.Node) -> Elements | None:
    data = values.operand(node, 0)
    if data is None or data.rank != 1 or attribute(node, "noop_with_empty_axes", 0):
        return None
    return Elements(attribute(node, "keepdims", 1), (multiply_all(data.items),))


RULES: Mapping[str, Callable[[Operands, ir.Node], Elements | None]] = MappingProxyType(
    {
        "Shape": _shape,
        "Size": _size,
        "Gather": _gather,
        "Slice": _slice,
        "Concat": _concat,
        "Squeeze": _reshape,
        "Unsqueeze": _reshape,
        "Reshape": _reshape,
        "Cast": _cast,
        "Identity": _same,
        "Where": _where,
        "ConstantOfShape": _filled,
        "ReduceProd": _reduced,
        **dict.fromkeys(_BINARY, _binary),
    }
)
"""The transfer function of each operator: elements of its output from those of its inputs."""
