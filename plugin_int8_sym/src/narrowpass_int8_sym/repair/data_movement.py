"""Data movement operators: of integers, and between different quantizations; both without loss.

Some tools apply Reshape, MaxPool and the like to the integers themselves, and PyTorch's exporter
emits a Clip of integers for 7-bit activations. The same operator between DequantizeLinear and
QuantizeLinear of the same scale has exactly the same results: it computes no new numbers.

The results of such an operator are elements of its operand, so that they can be quantized like it
without loss; the QuantizeLinear of the model becomes a conversion after it. For Concat the operands
are converted before it: quantizing the result again with the same parameters is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.quantization import QuantizationSpec, Violation
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.operators import Operator
from narrowpass_int8_sym.repair.quantization import (
    FLOAT,
    INT8,
    RANGES,
    Array,
    Quantization,
    is_node,
)
from narrowpass_int8_sym.repair.weights import WEIGHTED
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.movement import SELECTION

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
    editor.replace_node(node, *[editor.quantize(node, value, how) for value in wide])


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


_CONVERSION = "QuantizeLinear"

_SELECTING = SELECTION | {"Clip", "Concat", "Relu", "Resize"}
"""Operators whose results may be elements of their operand; see `_keeps_quantization`."""


def unify(editor: Editor, operator: Operator, spec: QuantizationSpec) -> str | Violation | None:
    """Convert operands or results of an operator, so that both have the same quantization.

    Returns:
        A description of the change; a violation where the conversion breaks a limit; None where no
        change is needed, or none is possible.
    """
    node = operator.node
    quantizations = [*operator.operands, *operator.results]
    if not spec.same(node.op_type) or not operator.direct or not operator.results:
        return None
    if any(how.axis is not None or how.dtype != INT8 for how in quantizations):
        return None
    first = operator.operands[0]
    if all(how.is_same(first) for how in quantizations):
        return None
    if node.op_type == "Concat":
        return _requantize_operands(editor, operator, spec)
    if len(operator.operands) != 1 or not _keeps_quantization(node, first):
        return None
    return _requantize_result(editor, operator, first, spec)


def _requantize_operands(
    editor: Editor, operator: Operator, spec: QuantizationSpec
) -> str | Violation | None:
    node, result = operator.node, operator.results[0]
    if any(not how.is_same(result) for how in operator.results):
        return None
    for how in operator.operands:
        broken = _violation(how, result, spec)
        if broken is not None:
            return broken
    for index, how in enumerate(operator.operands):
        value = node.inputs[index]
        if value is not None and not how.is_same(result):
            integers = editor.quantize(node, value, result)
            editor.replace_input(node, index, editor.dequantize(node, integers, result))
    return "its operands are converted before it"


def _requantize_result(
    editor: Editor, operator: Operator, how: Quantization, spec: QuantizationSpec
) -> str | Violation | None:
    for result in operator.results:
        broken = _violation(how, result, spec)
        if broken is not None:
            return broken
    for quantizing, result in zip(operator.quantizing, operator.results, strict=True):
        value = quantizing.inputs[0]
        if value is not None and not result.is_same(how):
            integers = editor.quantize(quantizing, value, how)
            editor.replace_input(quantizing, 0, editor.dequantize(quantizing, integers, how))
    return "its result is converted after it"


def _violation(how: Quantization, to: Quantization, spec: QuantizationSpec) -> Violation | None:
    """Return the limit that a conversion breaks; None where it breaks none."""
    if how.is_same(to):
        return None
    found = spec.violations(_CONVERSION, [how.parameters], to.parameters)
    return found[0] if found else None


def _keeps_quantization(node: ir.Node, how: Quantization) -> bool:
    """Return whether all results of an operator are exactly representable in the quantization."""
    if node.op_type == "Resize":
        mode = node.attributes.get_string("mode", "nearest")
        outside = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        return mode == "nearest" and outside != "tf_crop_and_resize"
    if node.op_type == "Relu" or (node.op_type in SELECTION and node.op_type != "Pad"):
        return True
    if node.op_type not in ("Clip", "Pad"):
        return False
    if any(name in node.attributes for name in ("min", "max", "value")):
        return False  # before operator set 11
    numbers = node.inputs[1:3] if node.op_type == "Clip" else node.inputs[2:3]
    return all(value is None or _is_exact(value, how) for value in numbers)


def _is_exact(value: ir.Value, how: Quantization) -> bool:
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1:
        return False
    number = np.asarray(tensor.numpy(), np.float32)
    return bool(np.array_equal(how.dequantized(how.quantized(number)), number))


def convert_to_fixed_result(
    editor: Editor, operator: Operator, spec: QuantizationSpec
) -> str | None:
    """Change a result to the fixed quantization of its operator, and convert it afterwards.

    Both must represent the same numbers: only int8 and uint8 may differ.

    Returns:
        A description of the change; None where none is needed, or none is possible.
    """
    node = operator.node
    fixed = spec.output(node.op_type)
    if fixed is None or not operator.direct or len(operator.results) != 1:
        return None
    dtype = ir.DataType.from_numpy(np.dtype(fixed.dtype))
    scale = np.asarray(fixed.scale, np.float32)
    wanted = Quantization(scale, np.asarray(fixed.zero_point, np.int32), dtype)
    (result,), (quantizing,) = operator.results, operator.quantizing
    value = quantizing.inputs[0]
    if result.dtype == dtype or not result.is_same(wanted) or value is None:
        return None
    integers = editor.quantize(quantizing, value, wanted)
    editor.replace_input(quantizing, 0, editor.dequantize(quantizing, integers, wanted))
    return f"its result is {fixed.dtype} first"


def quantize_like_operand(editor: Editor, operator: Operator, spec: QuantizationSpec) -> str | None:
    """Quantize a float result like the operand, where int8 operators follow.

    Some tools omit Q/DQ there, because nothing is rounded.

    Returns:
        A description of the change; None where none is needed, or none is possible.
    """
    node, first = operator.node, operator.operands[0]
    if operator.results or not is_node(node, *_SELECTING):
        return None
    if any(how.dtype != INT8 or how.axis is not None for how in operator.operands):
        return None
    if not all(how.is_same(first) for how in operator.operands):
        return None
    if node.op_type != "Concat" and not (
        len(operator.operands) == 1 and _keeps_quantization(node, first)
    ):
        return None
    if not any(_computes(user, spec) for value in node.outputs for user, _ in value.uses()):
        return None
    wide = [
        ir.Value(name=editor.reserve_name(f"{v.name}.wide"), shape=v.shape, type=v.type)
        for v in node.outputs
    ]
    same = ir.node(
        node.op_type,
        node.inputs,
        attributes=dict(node.attributes),
        outputs=wide,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    editor.insert_before(node, same)
    integers = [editor.quantize(node, value, first) for value in wide]
    editor.replace_node(node, *[editor.dequantize(node, value, first) for value in integers])
    return "its result is quantized like its operand"


def _computes(node: ir.Node, spec: QuantizationSpec) -> bool:
    """Return whether a consumer can be an int8 operator, or int8 data movement."""
    if not is_node(node, *spec.bounded, *_SELECTING) or is_node(node, _CONVERSION):
        return False
    if node.op_type not in WEIGHTED:
        return True
    return is_dequantized(node.inputs[1] if len(node.inputs) > 1 else None)


def is_dequantized(value: ir.Value | None) -> bool:
    """Return whether a value is the output of a DequantizeLinear."""
    return value is not None and is_node(value.producer(), "DequantizeLinear")


def is_conversion(node: ir.Node) -> bool:
    """Return whether a QuantizeLinear reads a DequantizeLinear, as a conversion does."""
    return is_dequantized(node.inputs[0])
