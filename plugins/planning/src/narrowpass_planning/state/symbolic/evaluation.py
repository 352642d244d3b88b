"""Evaluates the nodes of a graph that compute with sizes, symbolically."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_planning.state.symbolic import movement
from narrowpass_planning.state.symbolic.affine import Affine, Dims
from narrowpass_planning.state.symbolic.elements import Element
from narrowpass_planning.state.symbolic.rules import RULES, axes_of
from narrowpass_planning.state.symbolic.tensor import (
    MOST_ITEMS,
    ONE,
    Flat,
    Tensor,
    broadcast,
    element_of,
    function,
    listed,
)

_UNKNOWN = Affine.number(-1)


class Evaluation:
    """The values of a graph that are known as functions of their indices.

    Args:
        graph: in topological order.
        dims: of values, by ``id``, that are known better than the graph declares.
        feeds: elements of inputs of the graph, by name.

    Attributes:
        sources: the value and the axis that a symbol of a size stands for.
    """

    def __init__(
        self, graph: ir.Graph, dims: Mapping[int, Dims], feeds: Mapping[str, Tensor]
    ) -> None:
        self.sources: dict[str, tuple[ir.Value, int]] = {}
        self._dims = dict(dims)
        self._tensors: dict[int, Tensor] = {}
        self._flat: dict[int, Flat] = {}
        self._constants: dict[int, Tensor | None] = {}
        for value in graph.inputs:
            for axis, dim in enumerate(value.shape or ()):
                if not isinstance(dim, int) and dim.value:
                    self.sources.setdefault(dim.value, (value, axis))
            tensor = feeds.get(value.name or "")
            if tensor is not None:
                self._tensors[id(value)] = tensor
        for node in graph:
            self._follow_view(node)
            rule = None if node.domain not in ("", "ai.onnx") else RULES.get(node.op_type)
            if rule is None or len(node.outputs) != 1:
                continue
            found = rule(self, node)
            if isinstance(found, Flat):
                self._flat[id(node.outputs[0])] = found
            elif found is not None:
                self._tensors[id(node.outputs[0])] = found

    def _follow_view(self, node: ir.Node) -> None:
        """Note the dimensions of a view of a value whose dimensions are given."""
        given = None if node.domain or not node.inputs else self._dims.get(id(node.inputs[0]))
        found: Dims | None = None
        if given is None:
            return
        if node.op_type == "Identity":
            found = given
        elif node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            order = range(len(given))[::-1] if perm is None else perm.as_ints()
            found = _transposed(given, order)
        elif node.op_type == "Unsqueeze" and (axes := axes_of(self, node)) is not None:
            found = _unsqueezed(given, axes)
        elif node.op_type in ("Expand", "Reshape"):
            target = movement.integers(self.tensor(node.inputs[1]))
            copies = node.attributes.get_int("allowzero", 0) == 0
            if target is not None and node.op_type == "Expand":
                found = broadcast(given, tuple(target))
            elif target is not None:
                found = _reshaped(given, target, copies=copies)
        if found is not None:
            self._dims[id(node.outputs[0])] = found

    def follows(self, value: ir.Value) -> bool:
        """Return whether the dimensions of a value were given, or follow from such ones."""
        return id(value) in self._dims

    def tensor(self, value: ir.Value | None) -> Tensor | None:
        """Return what is known of a value's elements; None where nothing is."""
        if value is None:
            return None
        found = self._tensors.get(id(value))
        if found is not None:
            return found
        if id(value) not in self._constants:
            self._constants[id(value)] = _constant(value)
        return self._constants[id(value)]

    def flat(self, value: ir.Value | None) -> Flat | None:
        """Return what is known of a value's elements whose order is known; None for others."""
        return self._flat.get(id(value))

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the dimensions of a value; None where they are not affine, or no rank is known."""
        if value is None or id(value) in self._flat:
            return None
        known = self._dims.get(id(value))
        if known is None:
            tensor = self._tensors.get(id(value))
            known = None if tensor is None else tensor.dims
        if known is None and value.shape is not None:
            known = tuple(self._dim(value, axis) for axis in range(len(value.shape)))
        return known

    def _dim(self, value: ir.Value, axis: int) -> Affine:
        dim = None if value.shape is None else value.shape[axis]
        if isinstance(dim, int):
            return Affine.number(dim)
        if dim is not None and dim.value in self.sources:
            return Affine.of(dim.value)
        symbol = f"{value.name}[{axis}]"
        self.sources.setdefault(symbol, (value, axis))
        return Affine.of(symbol)


def _constant(value: ir.Value) -> Tensor | None:
    """Return a constant that is small, or has one element for all indices."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.size > MOST_ITEMS:
        return None
    try:
        array = tensor.numpy()
    except (TypeError, ValueError):
        return None
    if array.dtype.kind not in "iubf":
        return None
    items: list[Element] = [element_of(item) for item in array.reshape(-1).tolist()]
    if array.ndim < 2:
        return listed(items, array.ndim)
    if len(set(map(repr, items))) != 1:
        return None
    return function(tuple(map(Affine.number, array.shape)), items[0])


def _transposed(dims: Dims, perm: Sequence[int]) -> Dims:
    """Return dimensions in another order."""
    return tuple(dims[axis] for axis in perm)


def _unsqueezed(dims: Dims, axes: Sequence[int]) -> Dims:
    """Return dimensions with axes of size 1 inserted."""
    rank = len(dims) + len(axes)
    places = {axis % rank for axis in axes}
    remaining = iter(dims)
    return tuple(ONE if axis in places else next(remaining) for axis in range(rank))


def _reshaped(dims: Dims, target: Sequence[Affine], *, copies: bool) -> Dims | None:
    """Return the dimensions of a Reshape; None where one that follows from all others is unknown.

    Args:
        dims: of the operand.
        target: the shape.
        copies: whether 0 is the dimension of the operand.
    """
    shape = [
        dims[axis] if size == Affine() and copies and axis < len(dims) else size
        for axis, size in enumerate(target)
    ]
    if _UNKNOWN not in shape:
        return tuple(shape)
    rest = [dim for dim in dims if not dim.is_number]
    for size in shape:
        if not size.is_number:
            if size not in rest:
                return None
            rest.remove(size)
    before = math.prod(dim.constant for dim in dims if dim.is_number)
    after = math.prod(s.constant for s in shape if s.is_number and s != _UNKNOWN)
    if len(rest) > 1 or not after or before % after or shape.count(_UNKNOWN) > 1:
        return None
    found = rest[0].times(before // after) if rest else Affine.number(before // after)
    return tuple(found if size == _UNKNOWN else size for size in shape)
