"""The tensor that a value always is: an initializer, or the output of a Constant node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant; None for a computed value, and for sparse ones.

    The tensor is not touched. `onnx_ir.convenience.get_const_tensor` renames that of a Constant
    node to its value's name, and so writes into what callers of a pass hold.
    """
    if value is None or value.const_value is not None:
        return None if value is None else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain or len(node.attributes) != 1:
        return None
    (attribute,) = node.attributes.values()
    if attribute.is_ref():
        return None
    if attribute.name == "value":
        return attribute.as_tensor()
    if attribute.name in ("value_float", "value_floats"):
        return ir.Tensor(np.array(attribute.value, np.float32), name=value.name)
    if attribute.name in ("value_int", "value_ints"):
        return ir.Tensor(np.array(attribute.value, np.int64), name=value.name)
    if attribute.name == "value_string":
        return _strings([attribute.value], [], value)
    if attribute.name == "value_strings":
        return _strings(attribute.value, [len(attribute.value)], value)
    return None


def _strings(texts: Sequence[str], shape: list[int], value: ir.Value) -> ir.StringTensor:
    # As bytes, as tensors of files have them: onnx-ir writes no others.
    return ir.StringTensor(
        [text.encode() for text in texts], shape=ir.Shape(shape), name=value.name
    )
