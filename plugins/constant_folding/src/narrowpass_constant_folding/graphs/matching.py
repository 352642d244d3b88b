"""Questions about nodes that several rewrites ask."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of
from narrowpass_constant_folding.graphs.scopes import is_used


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is one of these operators of the standard domain.

    False for a node one of whose attributes is given by the caller of the function that it is
    in: what it does is not known.
    """
    if node is None or node.domain != "" or node.op_type not in op_types:
        return False
    return not any(attribute.is_ref() for attribute in node.attributes.values())


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return the value of an attribute; `default` where it is left out.

    Integers, floats and strings come as they are, lists of them as tuples.
    """
    found = node.attributes.get(name)
    if found is None:
        return default
    return tuple(found.value) if isinstance(found.value, (list, tuple)) else found.value


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of the node; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def only_first_output_used(node: ir.Node) -> bool:
    """Whether nothing reads the node's outputs but the first."""
    return not any(is_used(value) for value in node.outputs[1:])


def dtype_of(value: ir.Value) -> ir.DataType | None:
    """Return the element type of a value, where it is known."""
    if value.dtype not in (None, ir.DataType.UNDEFINED):
        return value.dtype
    tensor = constant_of(value)
    return None if tensor is None else tensor.dtype


def dims_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return the shape of a value: sizes, names of symbolic dimensions, None for unknown ones."""
    if value.shape is not None:
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    tensor = constant_of(value)
    return None if tensor is None else tuple(tensor.shape.numpy())
