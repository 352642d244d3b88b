"""Weights that are stored in 16 bits already, with a Cast to float32 in front of their readers."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_fp16.graph.schemas import FLOAT

_NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def stored_value(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value is a Cast of; None where it is no such Cast."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Cast" or node.domain or node.outputs[0].dtype != FLOAT:
        return None
    source = node.inputs[0]
    if source is None or source.const_value is None or source.is_graph_input():
        return None
    if not source.is_initializer() or source.const_value.dtype not in _NARROW:
        return None
    return source
