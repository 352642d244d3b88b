"""Nodes that are quantized by themselves become float operators between Q/DQ."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.forms import MICROSOFT, Form, Operand
from narrowpass_int8_sym.repair.quantization import FLOAT, Quantization, dims_of, of_conversion

FIRST_PER_CHANNEL = 13
"""The operator set from which Q/DQ have a scale for each channel."""


def no_channels(version: int) -> str:
    """Tell that an operator set has no scale for each channel."""
    return (
        f"operator set {version} has no DequantizeLinear with a scale for each channel; run "
        "upgrade-opset before"
    )


def obstacle(form: Form, version: int) -> str:
    """Return why a form cannot be written with Q/DQ of an operator set; empty where it can."""
    axes = [each.quantization.axis for each in form.operands if isinstance(each, Operand)]
    if version < 10:
        return f"operator set {version} has no QuantizeLinear; run upgrade-opset before"
    if version < FIRST_PER_CHANNEL and any(axis is not None for axis in axes):
        return no_channels(version)
    return ""


def rewrite(editor: Editor, node: ir.Node, form: Form) -> ir.Node:
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
    made = ir.Value(
        name=editor.unique(f"{result.name}.float"),
        shape=result.shape,
        type=ir.TensorType(FLOAT),
    )
    operator = ir.node(
        form.op_type,
        operands,
        attributes={item.name: item for item in form.attributes},
        outputs=[made],
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    editor.insert_before(node, operator)
    if form.result is None:
        take_place(editor, node, made)
    else:
        take_place(editor, node, editor.quantize(node, made, form.result))
    return operator


def take_place(editor: Editor, node: ir.Node, *values: ir.Value) -> None:
    """Let values have the names and the readers of a node's results; the node goes.

    Integers are named as before: outputs of the model are known by it.
    """
    for before, value in zip(node.outputs, values, strict=False):
        name, output = before.name, before.is_graph_output()
        before.replace_all_uses_with(value, replace_graph_outputs=output)
        before.name = editor.unique(f"{name}.before")
        value.name = name
        if output:
            value.type, value.shape = before.type or value.type, before.shape
    editor.remove(node)


def rewrite_conversion(editor: Editor, node: ir.Node, version: int) -> str:
    """Let a Q/DQ of onnxruntime's own domain be one of ONNX, which computes the same.

    Returns:
        Why not; empty where it was done.
    """
    found = of_conversion(node)
    if isinstance(found, str):
        return found
    if found.axis is not None and version < FIRST_PER_CHANNEL:
        return no_channels(version)
    source, result = node.inputs[0], node.outputs[0]
    if source is None:
        return "its input is missing"
    if found.axis is not None and dims_of(source) is None:
        return f"the rank of {source.name!r} is not known"
    reads = node.op_type == "DequantizeLinear"
    name = result.name or node.name or "value"
    made = ir.Value(
        name=editor.unique(f"{name}.standard"),
        shape=result.shape,
        type=ir.TensorType(FLOAT if reads else found.dtype),
    )
    how = Quantization(found.scale, found.zero_point, found.dtype, found.axis)
    standard = ir.node(
        node.op_type,
        [source, *editor.parameters(node, name, how)],
        attributes={} if how.axis is None else {"axis": how.axis},
        outputs=[made],
        name=node.name,
    )
    editor.insert_before(node, standard)
    take_place(editor, node, made)
    return ""


def is_microsoft_conversion(node: ir.Node) -> bool:
    """Return whether a node is a Q/DQ of onnxruntime's own domain."""
    return node.domain == MICROSOFT and node.op_type in ("QuantizeLinear", "DequantizeLinear")
