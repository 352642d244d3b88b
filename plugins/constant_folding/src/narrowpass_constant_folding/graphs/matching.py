"""Questions about nodes and values that several rewrites ask."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of, small_array
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


Schema = Any
"""An `onnx.defs.OpSchema`, whose stubs lack what is asked of it here."""


@functools.lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, version: int) -> Schema | None:
    """Return the schema of an operator at an operator-set version, or None."""
    if version < 1 or not onnx.defs.has(op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def broadcast_constant(value: ir.Value) -> ir.TensorProtocol | None:
    """Return a value's constant tensor, also where Expand or ConstantOfShape computes it."""
    tensor = constant_of(value)
    if tensor is not None:
        return tensor
    node = value.producer()
    if node is None:
        return None
    if is_op(node, "Expand"):
        source, target = input_of(node, 0), input_of(node, 1)
        tensor = None if source is None else constant_of(source)
    elif is_op(node, "ConstantOfShape"):
        target = input_of(node, 0)
        fill = node.attributes.get("value")
        tensor = ir.Tensor(np.zeros(1, np.float32)) if fill is None else fill.as_tensor()
    else:
        return None
    dims = None if target is None else small_array(constant_of(target))
    if tensor is None or dims is None or tensor.dtype == ir.DataType.STRING:
        return None
    wanted = tuple(int(dim) for dim in dims.ravel())
    try:
        shape = np.broadcast_shapes(tuple(tensor.shape.numpy()), wanted)
    except ValueError:  # the node will say so when it runs
        return None
    # A view, which takes no memory of its own.
    return ir.Tensor(np.broadcast_to(tensor.numpy(), shape), dtype=tensor.dtype)


def unbroadcast(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that has each element of a broadcast array once, so that looking is cheap."""
    return array[tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)]
