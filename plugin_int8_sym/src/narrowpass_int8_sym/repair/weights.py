"""Quantized weights become int8 with the zero point 0, where that is lossless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.quantization import IntegerRange, QuantizationSpec, Violation
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import (
    BYTES,
    FLOAT,
    INT8,
    Array,
    Quantization,
    is_node,
    read_qdq,
)
from narrowpass_ir.constants import constant_tensor

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose second operand is a weight, where it is constant."""


def is_weight(node: ir.Node) -> bool:
    """Return whether the result of a node is the weight of an operator."""
    uses = [use for value in node.outputs for use in value.uses()]
    return any(is_node(user, *WEIGHTED) and index == 1 for user, index in uses)


def fold_quantize(editor: Editor, node: ir.Node) -> str:
    """Fold a QuantizeLinear of a constant: store the integers that it computes.

    Returns:
        Why it is not possible; empty where it was done.
    """
    tensor = constant_tensor(node.inputs[0])
    if tensor is None or tensor.dtype != FLOAT:
        return "what it quantizes is no constant of float32"
    how = read_qdq(node)
    if isinstance(how, str):
        return how
    numbers = np.asarray(tensor.numpy(), np.float32)
    if np.isnan(numbers).any():
        return "the constant has NaN"
    result = node.outputs[0]
    if result.is_graph_output():
        return "its integers are an output of the model"
    stored = editor.constant(node, result.name or "integers", how.quantized(numbers))
    result.replace_all_uses_with(stored)
    editor.remove(node)
    return ""


def fold_transpose(editor: Editor, node: ir.Node) -> bool:
    """Fold a Transpose between a dequantized weight and its consumer into the integers.

    PyTorch exports linear layers with such a Transpose.

    Returns:
        Whether it was folded.
    """
    value, result = node.inputs[0], node.outputs[0]
    source = None if value is None else value.producer()
    if source is None or not is_node(source, "DequantizeLinear") or not is_weight(node):
        return False
    tensor, how = constant_tensor(source.inputs[0]), read_qdq(source)
    if tensor is None or isinstance(how, str) or result.is_graph_output():
        return False
    integers = np.asarray(tensor.numpy())
    order = list(node.attributes.get_ints("perm", None) or reversed(range(integers.ndim)))
    axis = None if how.axis is None else order.index(how.axis % integers.ndim)
    stored = editor.constant(node, f"{result.name}.integers", integers.transpose(order))
    editor.replace_node(node, editor.dequantize(node, stored, replace(how, axis=axis)))
    if not any(each.uses() or each.is_graph_output() for each in source.outputs):
        editor.remove(source)
    return True


def symmetrize(
    editor: Editor, node: ir.Node, how: Quantization, spec: QuantizationSpec, *, clamp: bool = False
) -> str | Violation | None:
    """Convert a weight to int8 with the zero point 0, or with another one if that is supported.

    The zero point is subtracted from the integers. Where one is out of range then, and all of its
    channel are even, they are halved and the scale doubled, which is exact, too.

    Args:
        editor: of the model.
        node: the DequantizeLinear of the weight.
        how: its quantization.
        spec: the limits of integers and zero points.
        clamp: whether integers out of range are clamped, where no exact form exists.

    Returns:
        A description of the change; a violation where none is possible; None where none is needed.
    """
    source = node.inputs[0]
    tensor = constant_tensor(source)
    if tensor is None or source is None or how.dtype not in BYTES:
        return None
    integers, allowed = np.asarray(tensor.numpy()), spec.weights
    _, zero = how.along(integers)
    if spec.weight_zero_points and how.dtype == INT8 and integers.min(initial=0) >= allowed.low:
        return None
    centered = integers.astype(np.int16) - zero.astype(np.int16)
    others = tuple(axis for axis in range(centered.ndim) if axis != how.axis)
    bounds = centered.min(axis=others, initial=0), centered.max(axis=others, initial=0)
    beyond = (bounds[0] < allowed.low) | (bounds[1] > allowed.high)
    if not beyond.any() and how.dtype == INT8 and not how.zero_point.any():
        return None
    if beyond.any():
        odd = (centered % 2 != 0).any(axis=others)
        twice = np.where(beyond, how.scale * np.float32(2), how.scale)
        halves = bounds[0] >= 2 * allowed.low, bounds[1] <= 2 * allowed.high
        fits = ~odd & halves[0] & halves[1] & np.isfinite(twice)
        if not fits[beyond].all() or _has_integer_bias(node):
            if (
                spec.weight_zero_points
                and how.dtype != INT8
                and int(integers.min()) - 128 >= allowed.low
            ):
                shift_to_int8(editor, node, how)
                return "its weight is int8, 128 less, like its zero point"
            if clamp and not how.signed.zero_point.any():
                return _clamp(editor, node, centered, how, allowed)
            return _weight_violation(how, bounds, allowed)
        half, _ = replace(how, scale=np.where(beyond, 2, 1)).along(integers)
        centered //= half.astype(np.int16)
        how = replace(how, scale=twice)
    symmetric = replace(how, zero_point=np.zeros_like(how.zero_point), dtype=INT8)
    _write(editor, node, centered.astype(np.int8), symmetric)
    doing = "; half the integers at twice the scale, in some channels" if beyond.any() else ""
    return f"its weight is int8 with the zero point 0{doing}"


def _clamp(
    editor: Editor, node: ir.Node, centered: Array, how: Quantization, allowed: IntegerRange
) -> str:
    """Clamp the integers of a weight; return a description with the error that this adds."""
    clamped = np.clip(centered, allowed.low, allowed.high)
    scale, _ = how.along(centered)
    moved = (clamped - centered) * scale.astype(np.float64)
    norm = float(np.linalg.norm(centered * scale.astype(np.float64)))
    symmetric = replace(how, zero_point=np.zeros_like(how.zero_point), dtype=INT8)
    _write(editor, node, clamped.astype(np.int8), symmetric)
    count, relative = int(np.count_nonzero(moved)), float(np.linalg.norm(moved)) / norm
    return (
        f"{count} of {centered.size} integers of its weight are clamped to "
        f"[{allowed.low}, {allowed.high}], which moves one by {np.abs(moved).max():.3g} at most, "
        f"and the weight by {relative:.2g} of its norm"
    )


def shift_to_int8(editor: Editor, node: ir.Node, how: Quantization) -> None:
    """Convert a uint8 constant to int8: integers and zero point less by 128."""
    tensor = constant_tensor(node.inputs[0])
    if tensor is None:
        raise ValueError(f"what {node.name!r} reads is no constant")
    signed = (tensor.numpy().astype(np.int16) - 128).astype(np.int8)
    _write(editor, node, signed, how.signed)


def _write(editor: Editor, node: ir.Node, integers: Array, how: Quantization) -> None:
    """Replace the integers and the quantization of a DequantizeLinear."""
    source = node.inputs[0]
    name = (source.name if source is not None else None) or "weight"
    editor.replace_input(node, 0, editor.constant(node, name, integers))
    for index, value in enumerate(editor.parameters(node, name, how), start=1):
        editor.replace_input(node, index, value)
    if how.axis is not None:
        node.attributes.add(ir.AttrInt64("axis", how.axis))


def _has_integer_bias(node: ir.Node) -> bool:
    """Return whether an int32 bias has a scale that contains the scale of the weight."""
    users = [user for value in node.outputs for user, _ in value.uses()]
    biases = [user.inputs[2] for user in users if len(user.inputs) > 2]
    return any(bias is not None and is_node(bias.producer(), "DequantizeLinear") for bias in biases)


def _weight_violation(
    how: Quantization, bounds: tuple[Array, Array], allowed: IntegerRange
) -> Violation:
    """Return the limit of the backend that a weight breaks: zero point 0, or its integer range."""
    zero = np.ravel(how.signed.zero_point)
    worst = int(zero[np.abs(zero).argmax()])
    if worst:
        return Violation("zero point of the weight", worst, 0)
    least, largest = int(bounds[0].min()), int(bounds[1].max())
    if least < allowed.low:
        return Violation("integer of the weight", least, allowed.low)
    return Violation("integer of the weight", largest, allowed.high)
