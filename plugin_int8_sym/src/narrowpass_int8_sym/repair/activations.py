"""Activations in unsigned bytes become signed: 128 less, like their zero point.

The numbers that they stand for are the same, exactly. Inputs and outputs of the model keep their
types: a QuantizeLinear, or a DequantizeLinear and one, converts at the border.
"""

from __future__ import annotations

import onnx_ir as ir

from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import UINT8, Quantization, is_node, of_conversion


def known(node: ir.Node | None, kind: str) -> Quantization | None:
    """Return the quantization of a Q/DQ; None for another node, and where it cannot be used."""
    if node is None or not is_node(node, kind):
        return None
    found = of_conversion(node)
    return found if isinstance(found, Quantization) else None


def sign_result(editor: Editor, node: ir.Node, how: Quantization) -> bool:
    """Let a QuantizeLinear make signed bytes, and what reads them take these.

    Args:
        editor: of the model.
        node: the QuantizeLinear.
        how: its quantization, unsigned.

    Returns:
        Whether anything was changed.
    """
    result = node.outputs[0]
    readers = [user for user, _ in result.uses()]
    behind = [known(user, "DequantizeLinear") for user in readers]
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
        # Those of another scale see other numbers in the same integers.
        if each is not None and each.is_same(how):
            editor.replace_input(user, 0, signed)
            _write(editor, user, each.signed)
    return True


def sign_operand(editor: Editor, node: ir.Node, how: Quantization) -> bool:
    """Convert what a DequantizeLinear reads to signed bytes, where it comes as unsigned ones.

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
    """Return whether a QuantizeLinear reads what has the same numbers in bytes already."""
    source = node.inputs[0]
    before = None if source is None else known(source.producer(), "DequantizeLinear")
    own = known(node, "QuantizeLinear")
    return before is not None and own is not None and own.is_same(before)


def _write(editor: Editor, node: ir.Node, how: Quantization) -> None:
    """Let a Q/DQ have another zero point; its scale stays."""
    if how.dtype == UINT8:
        raise ValueError(f"{node.name!r} is to be signed")
    value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    name = (None if value is None else value.name) or "value"
    scale = constant_tensor(node.inputs[1])
    shape = how.scale.shape if scale is None else tuple(scale.shape.numpy())
    zeros = how.zero_point.astype(how.dtype.numpy()).reshape(shape)
    editor.replace_input(node, 2, editor.constant(node, f"{name}.zero_point", zeros))
