"""uint8 activations become int8: integers and zero point are less by 128.

The real numbers that they represent are exactly the same. Inputs and outputs of the model keep
their types: Q/DQ nodes at the border convert them.
"""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import UINT8, Quantization, is_node, read_qdq
from narrowpass_ir.constants import constant_tensor


def qdq_quantization(node: ir.Node | None, kind: str) -> Quantization | None:
    """Return the quantization of a Q/DQ node; None for other nodes, and where it is not usable."""
    if node is None or not is_node(node, kind):
        return None
    found = read_qdq(node)
    return found if isinstance(found, Quantization) else None


def sign_result(editor: Editor, node: ir.Node, how: Quantization) -> bool:
    """Change a QuantizeLinear to int8, and its consumers with it.

    Args:
        editor: of the model.
        node: the QuantizeLinear.
        how: its quantization, unsigned.

    Returns:
        Whether anything was changed.
    """
    result = node.outputs[0]
    readers = [user for user, _ in result.uses()]
    behind = [qdq_quantization(user, "DequantizeLinear") for user in readers]
    if readers and not result.is_graph_output() and all(each is not None for each in behind):
        for user, each in zip(readers, behind, strict=True):
            if each is not None:
                _write(editor, user, each.signed)
        _write(editor, node, how.signed)
        node.attributes.pop("output_dtype", None)
        result.type = ir.TensorType(how.signed.dtype)
        return True
    source = node.inputs[0]
    if source is None or converts(node):
        return False
    signed = editor.quantize(node, source, how.signed)
    numbers = editor.dequantize(node, signed, how.signed)
    editor.replace_input(node, 0, numbers)
    for user, each in zip(readers, behind, strict=True):
        # Consumers with another scale read other numbers from the same integers.
        if each is not None and each.is_same(how):
            editor.replace_input(user, 0, signed)
            _write(editor, user, each.signed)
    return True


def sign_operand(editor: Editor, node: ir.Node, how: Quantization) -> bool:
    """Convert the uint8 input of a DequantizeLinear to int8.

    Args:
        editor: of the model.
        node: the DequantizeLinear.
        how: its quantization, unsigned.

    Returns:
        Whether anything was changed.
    """
    source, result = node.inputs[0], node.outputs[0]
    if source is None or all(is_node(user, "QuantizeLinear") for user, _ in result.uses()):
        return False
    numbers = editor.dequantize(node, source, how)
    editor.replace_input(node, 0, editor.quantize(node, numbers, how.signed))
    _write(editor, node, how.signed)
    return True


def converts(node: ir.Node) -> bool:
    """Return whether a QuantizeLinear reads a DequantizeLinear of the same quantization."""
    source = node.inputs[0]
    before = None if source is None else qdq_quantization(source.producer(), "DequantizeLinear")
    own = qdq_quantization(node, "QuantizeLinear")
    return before is not None and own is not None and own.is_same(before)


def _write(editor: Editor, node: ir.Node, how: Quantization) -> None:
    """Replace the zero point of a Q/DQ node; its scale stays."""
    if how.dtype == UINT8:
        raise ValueError(f"the new quantization of {node.name!r} is not signed")
    value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    name = (None if value is None else value.name) or "value"
    scale = constant_tensor(node.inputs[1])
    shape = how.scale.shape if scale is None else tuple(scale.shape.numpy())
    zeros = how.zero_point.astype(how.dtype.numpy()).reshape(shape)
    editor.replace_input(node, 2, editor.constant(node, f"{name}.zero_point", zeros))
