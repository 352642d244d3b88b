"""What is known of integer values that are computed from shapes, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of, small_array
from narrowpass_constant_folding.graphs.matching import attribute, dims_of, input_of, is_op
from narrowpass_constant_folding.shapes.sizes import (
    Element,
    add,
    divide,
    is_equal,
    is_less,
    multiply,
    multiply_all,
    named,
    subtract,
)


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


def _shape(values: ShapeValues, node: ir.Node) -> Elements | None:
    source = node.inputs[0]
    dims = None if source is None else values.dims(source)
    if dims is None:
        return None
    return Elements(1, dims[attribute(node, "start", 0) : attribute(node, "end", None)])


def _size(values: ShapeValues, node: ir.Node) -> Elements | None:
    source = node.inputs[0]
    dims = None if source is None else values.dims(source)
    return None if dims is None else Elements(0, (multiply_all(dims),))


def _gather(values: ShapeValues, node: ir.Node) -> Elements | None:
    data, indices = values.operand(node, 0), values.operand(node, 1)
    if data is None or indices is None or data.rank != 1 or indices.numbers is None:
        return None
    count = len(data.items)
    if any(not -count <= index < count for index in indices.numbers):
        return None
    return Elements(indices.rank, tuple(data.items[index] for index in indices.numbers))


def _slice(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _concat(values: ShapeValues, node: ir.Node) -> Elements | None:
    parts = [values.operand(node, index) for index in range(len(node.inputs))]
    items: list[Element] = []
    for part in parts:
        if part is None or part.rank != 1:
            return None
        items.extend(part.items)
    return Elements(1, tuple(items))


def _reshape(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _axes(values: ShapeValues, node: ir.Node) -> Sequence[Element] | None:
    """Return the axes of a Squeeze or Unsqueeze, if they are known."""
    if input_of(node, 1) is None:
        axes: Sequence[int] | None = attribute(node, "axes", None)
        return axes
    found = values.operand(node, 1)
    return None if found is None else found.numbers


def _cast(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _same(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _binary(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _where(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _filled(values: ShapeValues, node: ir.Node) -> Elements | None:
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


def _reduced(values: ShapeValues, node: ir.Node) -> Elements | None:
    data = values.operand(node, 0)
    if data is None or data.rank != 1 or attribute(node, "noop_with_empty_axes", 0):
        return None
    return Elements(attribute(node, "keepdims", 1), (multiply_all(data.items),))


RULES: Mapping[str, Callable[[ShapeValues, ir.Node], Elements | None]] = MappingProxyType(
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
