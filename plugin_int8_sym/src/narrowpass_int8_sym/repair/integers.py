"""Rewrites data movement of integers to data movement of floats between Q/DQ.

Some tools apply Reshape, MaxPool and the like to the integers themselves, and PyTorch's exporter
emits a Clip of integers for 7-bit activations. The same operator between DequantizeLinear and
QuantizeLinear of the same scale has exactly the same results: it computes no new numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import FLOAT, RANGES, Array, Quantization, is_node
from narrowpass_int8_sym.repair.rewriting import replace_node
from narrowpass_ir.constants import constant_tensor

_PADDING = 2
"""The input of Pad with the constant."""


def rewrite_data_movement(editor: Editor, node: ir.Node, how: Quantization) -> str:
    """Rewrite a data movement operator of integers to one of floats between Q/DQ.

    Args:
        editor: of the model.
        node: one of `narrowpass_ir.movement.SELECTION`.
        how: the quantization of the integers, with one scale.

    Returns:
        Why it is not possible; empty where it was done.
    """
    first = node.inputs[0]
    if first is None:
        return "its input is missing"
    results = list(node.outputs)
    if node.op_type == "MaxPool" and len(results) > 1:
        if results[1].uses() or results[1].is_graph_output():
            return "its indices are read, too"
        results = results[:1]
    operands = list(node.inputs)
    if node.op_type == "Pad":
        padding = _padding(editor, node, how)
        if isinstance(padding, str):
            return padding
        operands += [None] * (_PADDING + 1 - len(operands))
        operands[_PADDING] = padding
    operands[0] = editor.dequantize(node, first, how)
    _replace(editor, node, operands, results, how)
    return ""


def rewrite_clip(editor: Editor, node: ir.Node, how: Quantization) -> str:
    """Rewrite a Clip of integers to one of floats, before QuantizeLinear where possible.

    Rounding is monotonic, and the limits are integers, so both orders have the same result.

    Returns:
        Why it is not possible; empty where it was done.
    """
    first = node.inputs[0]
    if first is None:
        return "its input is missing"
    low, high = RANGES[how.dtype]
    limits: list[ir.Value | None] = [None, None]
    for index, most in ((1, low), (2, high)):
        given = node.inputs[index] if index < len(node.inputs) else None
        tensor = constant_tensor(given)
        if given is not None and (tensor is None or tensor.size != 1):
            return f"its limit {given.name!r} is computed"
        if tensor is not None and int(tensor.numpy().item()) != most:
            number = how.dequantized(tensor.numpy().reshape(()))
            limits[index - 1] = editor.constant(node, f"{node.outputs[0].name}.limit", number)
    producer = first.producer()
    alone = len(first.uses()) == 1 and not first.is_graph_output()
    quantizing = producer is not None and is_node(producer, "QuantizeLinear") and alone
    source = producer.inputs[0] if producer is not None and quantizing else None
    numbers = source if source is not None else editor.dequantize(node, first, how)
    _replace(editor, node, [numbers, *limits], node.outputs, how)
    if producer is not None and quantizing:
        editor.remove(producer)
    return ""


def _replace(
    editor: Editor,
    node: ir.Node,
    operands: Sequence[ir.Value | None],
    results: Sequence[ir.Value],
    how: Quantization,
) -> None:
    """Replace a node by the same operator on floats, followed by QuantizeLinear."""
    wide = [
        ir.Value(
            name=editor.reserve_name(f"{value.name}.float"),
            shape=value.shape,
            type=ir.TensorType(FLOAT),
        )
        for value in results
    ]
    operator = ir.node(
        node.op_type,
        operands,
        attributes=dict(node.attributes),
        outputs=wide,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    editor.insert_before(node, operator)
    replace_node(editor, node, *[editor.quantize(node, value, how) for value in wide])


def _padding(editor: Editor, node: ir.Node, how: Quantization) -> ir.Value | str | None:
    """Return the dequantized padding value of a Pad; that of the integer 0 by default."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return None
    given = node.inputs[_PADDING] if len(node.inputs) > _PADDING else None
    tensor = constant_tensor(given)
    if given is not None and (tensor is None or tensor.size != 1):
        return f"what it adds, {given.name!r}, is computed"
    integer: Array = np.zeros((), np.int64) if tensor is None else tensor.numpy().reshape(())
    return editor.constant(node, f"{node.outputs[0].name}.padding", how.dequantized(integer))
