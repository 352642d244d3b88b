"""Operators in the QOperator format, such as QLinearConv: scales and zero points are inputs.

Each is replaced by a float operator between DequantizeLinear and QuantizeLinear. Its accumulators
are exact, int32, while those of the float operator are rounded to float32, so that a result halfway
between two integers may round to the other one: a difference of one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import (
    FLOAT,
    INT32,
    Quantization,
    axis_problem,
    dims_of,
    input_of,
    read_qdq,
    read_quantization,
)

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Operand:
    """A quantized operand of a node: its integers and their quantization."""

    value: ir.Value
    quantization: Quantization


@dataclass(frozen=True)
class QOperator:
    """The float operator that a QOperator node is equivalent to.

    Attributes:
        op_type: of the float operator.
        operands: its operands: quantized ones, or values that are not quantized; None for one left
            out.
        result: the quantization of the result; None where it is float.
        attributes: of the float operator.
        constants: further operands, which the node has as attributes.
    """

    op_type: str
    operands: tuple[Operand | ir.Value | None, ...]
    result: Quantization | None
    attributes: tuple[ir.Attr, ...] = ()
    constants: tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...] = field(default=())


class _UnreadError(Exception):
    """A node is not supported; the message is the reason."""


Reader = Callable[[ir.Node, int], QOperator]


def read_qoperator(node: ir.Node, version: int) -> QOperator | str | None:
    """Read a node in the QOperator format.

    Args:
        node: of any operator.
        version: of ONNX's operator set in the model.

    Returns:
        None for other nodes, and a reason for one that cannot be read.
    """
    reader = _READERS.get((node.domain, node.op_type))
    if reader is None:
        return None
    if node.attributes.get_int("channels_last", 0):
        return "its layout is channels-last"
    try:
        return reader(node, version)
    except _UnreadError as reason:
        return str(reason)


def _read(
    node: ir.Node, scale: int, zero: int, dtype: ir.DataType | None, axis: int | None = None
) -> Quantization:
    found = read_quantization(input_of(node, scale), input_of(node, zero), dtype, axis)
    if isinstance(found, str):
        raise _UnreadError(found)
    return found


def _operand(node: ir.Node, at: Sequence[int], axis: int | None = None) -> Operand:
    """Read the integers, scale and zero point at three indices of a node's inputs."""
    value = input_of(node, at[0])
    if value is None:
        raise _UnreadError(f"its input {at[0]} is missing")
    dtype = value.const_value.dtype if value.const_value is not None else value.dtype
    found = _read(node, at[1], at[2], dtype, axis)
    if found.axis is not None:
        dims = dims_of(value)
        if dims is None:
            raise _UnreadError(f"the rank of {value.name!r} is not known")
        problem = axis_problem(found, dims)
        if problem:
            raise _UnreadError(problem)
        found = replace(found, axis=found.axis % len(dims))
    return Operand(value, found)


def _bias(node: ir.Node, index: int, first: Quantization, second: Operand, alpha: float) -> Operand:
    """Read an int32 bias: its scale is that of the activation times that of the weight."""
    value = input_of(node, index)
    if value is None:
        raise _UnreadError(f"its input {index} is missing")
    how = second.quantization
    scale = np.asarray(first.scale * how.scale * np.float32(alpha), np.float32)
    axis = None
    if how.axis is not None:
        dims = dims_of(value)
        if dims is None or not dims or dims[-1] != scale.size:
            raise _UnreadError(f"its bias {value.name!r} has not one element for each scale")
        axis = len(dims) - 1
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise _UnreadError("the scale of its bias is beyond float32")
    return Operand(value, Quantization(scale, np.zeros_like(scale, np.int32), INT32, axis))


def _attributes(node: ir.Node, *without: str) -> tuple[ir.Attr, ...]:
    dropped = {"channels_last", *without}
    return tuple(item for name, item in node.attributes.items() if name not in dropped)


def _conv(node: ir.Node, version: int) -> QOperator:
    image, weight = _operand(node, (0, 1, 2)), _operand(node, (3, 4, 5), axis=0)
    operands = [image, weight]
    if input_of(node, 8) is not None:
        operands.append(_bias(node, 8, image.quantization, weight, 1.0))
    return QOperator("Conv", tuple(operands), _read(node, 6, 7, None), _attributes(node))


def _matmul(node: ir.Node, version: int) -> QOperator:
    operands = _operand(node, (0, 1, 2)), _operand(node, (3, 4, 5), axis=-1)
    return QOperator("MatMul", operands, _read(node, 6, 7, None))


def _gemm(node: ir.Node, version: int) -> QOperator:
    axis = 0 if node.attributes.get_int("transB", 0) else 1
    first, second = _operand(node, (0, 1, 2)), _operand(node, (3, 4, 5), axis)
    operands = [first, second]
    if input_of(node, 6) is not None:
        alpha = node.attributes.get_float("alpha", 1.0)
        if not (math.isfinite(alpha) and alpha > 0):
            raise _UnreadError(f"its alpha is {alpha:g}: no scale of a bias follows from it")
        operands.append(_bias(node, 6, first.quantization, second, alpha))
    result = _read(node, 7, 8, None) if input_of(node, 7) is not None else None
    return QOperator("Gemm", tuple(operands), result, _attributes(node))


def _elementwise(op_type: str, count: int) -> Reader:
    """Return the reader of an operator with inputs (x, scale, zero point) for each operand."""

    def reader(node: ir.Node, version: int) -> QOperator:
        operands = tuple(_operand(node, range(3 * i, 3 * i + 3)) for i in range(count))
        dtype = operands[0].quantization.dtype
        result = _read(node, 3 * count, 3 * count + 1, dtype)
        return QOperator(op_type, operands, result, _attributes(node))

    return reader


def _where(node: ir.Node, version: int) -> QOperator:
    condition = input_of(node, 0)
    operands = condition, _operand(node, (1, 2, 3)), _operand(node, (4, 5, 6))
    return QOperator("Where", operands, _read(node, 7, 8, None))


def _concat(node: ir.Node, version: int) -> QOperator:
    count, rest = divmod(len(node.inputs) - 2, 3)
    if rest or count < 1:
        raise _UnreadError(f"it has {len(node.inputs)} inputs: not two and three for each operand")
    operands = tuple(_operand(node, range(3 * i + 2, 3 * i + 5)) for i in range(count))
    return QOperator("Concat", operands, _read(node, 0, 1, None), _attributes(node))


def _softmax(node: ir.Node, version: int) -> QOperator:
    meant = node.attributes.get_int("opset", version)
    operand = _operand(node, (0, 1, 2))
    dims = dims_of(operand.value)
    axis = node.attributes.get_int("axis", -1 if meant >= 13 else 1)
    # Before operator set 13 all dimensions from the axis on were one.
    last = axis == -1 or (dims is not None and axis == len(dims) - 1)
    if (meant < 13) != (version < 13) and not last:
        raise _UnreadError(f"its axis {axis} is that of operator set {meant}")
    return QOperator("Softmax", (operand,), _read(node, 3, 4, None), (ir.AttrInt64("axis", axis),))


def _mean(node: ir.Node, version: int) -> QOperator:
    plain = _elementwise("ReduceMean", 1)(node, version)
    axes = node.attributes.get_ints("axes", None)
    if version < 18 or axes is None:
        return plain
    return replace(
        plain, attributes=_attributes(node, "axes"), constants=(np.array(axes, np.int64),)
    )


_READERS: dict[tuple[str, str], Reader] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "QLinearAdd"): _elementwise("Add", 2),
    (MICROSOFT, "QLinearAveragePool"): _elementwise("AveragePool", 1),
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearConv"): _conv,
    (MICROSOFT, "QLinearGlobalAveragePool"): _elementwise("GlobalAveragePool", 1),
    (MICROSOFT, "QLinearLeakyRelu"): _elementwise("LeakyRelu", 1),
    (MICROSOFT, "QLinearMul"): _elementwise("Mul", 2),
    (MICROSOFT, "QLinearReduceMean"): _mean,
    (MICROSOFT, "QLinearSigmoid"): _elementwise("Sigmoid", 1),
    (MICROSOFT, "QLinearSoftmax"): _softmax,
    (MICROSOFT, "QLinearWhere"): _where,
}


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
        editor.replace_node(node, number)
    else:
        editor.replace_node(node, editor.quantize(node, number, form.result))
    return operator


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
    editor.replace_node(node, converted)
    return ""


def is_microsoft_conversion(node: ir.Node) -> bool:
    """Return whether a node is a Q/DQ node of onnxruntime's domain."""
    return node.domain == MICROSOFT and node.op_type in ("QuantizeLinear", "DequantizeLinear")
