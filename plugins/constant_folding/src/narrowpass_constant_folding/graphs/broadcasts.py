"""Constants that Expand or ConstantOfShape broadcasts, as views."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of, small_array
from narrowpass_constant_folding.graphs.matching import input_of, is_op


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
