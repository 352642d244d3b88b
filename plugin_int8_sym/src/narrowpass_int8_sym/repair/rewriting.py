"""Replaces QOperator nodes by float operators between Q/DQ."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.qoperator import MICROSOFT, Operand, QOperator
from narrowpass_int8_sym.repair.quantization import FLOAT, Quantization, dims_of, read_qdq

FIRST_PER_CHANNEL = 13
"""The first operator set with a scale for each channel in Q/DQ."""


def no_per_channel_scales(version: int) -> str:
    """Return the reason that an operator set has no scale for each channel."""
    return (
        f"operator set {version} has no DequantizeLinear with a scale for each channel; run "
        "upgrade-opset before"
    )


def obstacle(form: QOperator, version: int) -> str:
    """Return why Q/DQ of an operator set cannot express a QOperator; empty where they can."""
    axes = [each.quantization.axis for each in form.operands if isinstance(each, Operand)]
    if version < 10:
        return f"operator set {version} has no QuantizeLinear; run upgrade-opset before"
    if version < FIRST_PER_CHANNEL and any(axis is not None for axis in axes):
        return no_per_channel_scales(version)
    return ""


def rewrite(editor: Editor, node: ir.Node, form: QOperator) -> ir.Node:
    """Replace a node; return the float operator, which has its name."""
    operands: list[ir.Value | None] = [
        editor.dequantize(node, each.value, each.quantization)
        if isinstance(each, Operand)
        else each
        for each in form.operands
    ]
    name = node.name or node.outputs[0].name or form.op_type
    operands += [editor.constant(node, f"{name}.axes", each) for each in form.constants]
    result = node.outputs[0]
    number = ir.Value(
        name=editor.reserve_name(f"{result.name}.float"),
        shape=result.shape,
        type=ir.TensorType(FLOAT),
    )
    operator = ir.node(
        form.op_type,
        operands,
        attributes={item.name: item for item in form.attributes},
        outputs=[number],
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    editor.insert_before(node, operator)
    if form.result is None:
        replace_node(editor, node, number)
    else:
        replace_node(editor, node, editor.quantize(node, number, form.result))
    return operator


def replace_node(editor: Editor, node: ir.Node, *values: ir.Value) -> None:
    """Replace the results of a node by values, which get their names, and remove the node.

    The names stay, because outputs of the model are identified by them.
    """
    for before, value in zip(node.outputs, values, strict=False):
        name, output = before.name, before.is_graph_output()
        before.replace_all_uses_with(value, replace_graph_outputs=output)
        before.name = editor.reserve_name(f"{name}.before")
        value.name = name
        if output:
            value.type, value.shape = before.type or value.type, before.shape
    editor.remove(node)


def rewrite_conversion(editor: Editor, node: ir.Node, version: int) -> str:
    """Replace a Q/DQ node of onnxruntime's domain by the one of ONNX.

    Returns:
        Why it is not possible; empty where it was done.
    """
    found = read_qdq(node)
    if isinstance(found, str):
        return found
    if found.axis is not None and version < FIRST_PER_CHANNEL:
        return no_per_channel_scales(version)
    source, result = node.inputs[0], node.outputs[0]
    if source is None:
        return "its input is missing"
    if found.axis is not None and dims_of(source) is None:
        return f"the rank of {source.name!r} is not known"
    reads = node.op_type == "DequantizeLinear"
    name = result.name or node.name or "value"
    converted = ir.Value(
        name=editor.reserve_name(f"{name}.standard"),
        shape=result.shape,
        type=ir.TensorType(FLOAT if reads else found.dtype),
    )
    how = Quantization(found.scale, found.zero_point, found.dtype, found.axis)
    standard = ir.node(
        node.op_type,
        [source, *editor.parameters(node, name, how)],
        attributes={} if how.axis is None else {"axis": how.axis},
        outputs=[converted],
        name=node.name,
    )
    editor.insert_before(node, standard)
    replace_node(editor, node, converted)
    return ""


def is_microsoft_conversion(node: ir.Node) -> bool:
    """Return whether a node is a Q/DQ node of onnxruntime's domain."""
    return node.domain == MICROSOFT and node.op_type in ("QuantizeLinear", "DequantizeLinear")
