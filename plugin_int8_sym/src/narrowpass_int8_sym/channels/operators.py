"""What operators do with a value whose channels are divided by factors.

An axis is counted from the end, as broadcasting does: -1 is the last. Factors are positive.

A *source* makes the value, and its constants can be divided. A *sink* reads it, and its constant
can be multiplied. Others pass factors on, from inputs to the output, because they compute each
channel by itself and are homogeneous: ``f(x / s) = f(x) / s``. That holds for Relu, LeakyRelu and
PRelu, and for pools. It holds for a Clip from 0 upwards without an upper limit; another limit is
one number for all channels, and data that does not meet it says nothing of data to come.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.channels.operand import Operand, known

_HOMOGENEOUS = frozenset(
    {
        "Abs",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Identity",
        "LeakyRelu",
        "MaxPool",
        "Neg",
        "PRelu",
        "Relu",
    }
)
_OF_TWO = frozenset({"Add", "Max", "Min", "Sub"})
_FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})


def source(node: ir.Node, axis: int) -> list[Operand] | None:
    """Return the constants that divide what a node makes.

    Args:
        node: the producer of the value, as its first output.
        axis: of the channels.

    Returns:
        None where the node is no source.
    """
    if node.domain:
        return None
    find = _SOURCES.get(node.op_type)
    return None if find is None else find(node, axis)


def sink(node: ir.Node, index: int, axis: int) -> Operand | None:
    """Return the constant that multiplies what a node reads as input `index`; None for no sink."""
    if node.domain:
        return None
    if node.op_type == "Mul":
        return None if _is_one_number(node.inputs[1 - index]) else _vector(node, 1 - index, axis)
    other = known(node.inputs[1]) if len(node.inputs) > 1 else None
    if index != 0 or other is None or len(other) < 2:
        return None
    if node.op_type == "Conv":
        return _conv_sink(node, other) if axis == 1 - len(other) else None
    if node.op_type == "ConvTranspose":
        return Operand(node, 1) if axis == 1 - len(other) else None
    if len(other) != 2 or axis != -1:
        return None
    if node.op_type == "MatMul":
        return Operand(node, 1)
    if node.op_type == "Gemm" and not node.attributes.get_int("transA", 0):
        return Operand(node, 1, node.attributes.get_int("transB", 0))
    return None


def backward(node: ir.Node, axis: int) -> tuple[Mapping[int, int], list[Operand]] | None:
    """Return what must be divided for the first output of a node to be.

    Args:
        node: one that passes factors on.
        axis: of the channels in the output.

    Returns:
        The axis in each input that must be, by its index, and constants that must be; None for
        nodes that pass no factors on.
    """
    if node.domain:
        return None
    kind = node.op_type
    if kind in _HOMOGENEOUS or (kind == "Clip" and _is_relu(node)):
        return {0: axis}, []
    if kind == "Transpose":
        order = _order(node)
        return None if order is None else ({0: order[axis] - len(order)}, [])
    if kind in _FLATTENING:
        return ({0: 1 - len(_dims(node.inputs[0]) or ())}, []) if _flattens(node, axis) else None
    if kind == "Div":
        return ({0: axis}, []) if _is_one_number(node.inputs[1]) else None
    if kind == "Mul":
        numbers = [index for index in (0, 1) if _is_one_number(node.inputs[index])]
        return ({1 - numbers[0]: axis}, []) if len(numbers) == 1 else None
    if kind not in _OF_TWO or len(node.inputs) != 2:
        return None
    constants = [index for index in (0, 1) if constant_tensor(node.inputs[index]) is not None]
    if not constants:
        return {0: axis, 1: axis}, []
    vector = _vector(node, constants[0], axis)
    return ({1 - constants[0]: axis}, [vector]) if vector and len(constants) == 1 else None


def forward(node: ir.Node, index: int, axis: int) -> int | None:
    """Return the axis of the channels in a node's output from that in its input `index`.

    None where the node passes no factors on.
    """
    kind = node.op_type
    out = axis
    if kind == "Transpose":
        order = _order(node)
        if order is None:
            return None
        out = order.index(axis + len(order)) - len(order)
    elif kind in _FLATTENING:
        out = -1
    passed = backward(node, out)
    return out if passed is not None and passed[0].get(index) == axis else None


def _conv_sink(node: ir.Node, dims: tuple[int, ...]) -> Operand:
    groups = node.attributes.get_int("group", 1)
    if groups > 1 and dims[1] == 1:
        return Operand(node, 1, 0, repeats=dims[0] // groups)
    return Operand(node, 1, 1, groups)


def _conv_source(node: ir.Node, axis: int) -> list[Operand] | None:
    dims = known(node.inputs[1])
    if dims is None or axis != 1 - len(dims):
        return None
    if node.op_type == "Conv":
        return [Operand(node, 1), *_bias(node)]
    return [Operand(node, 1, 1, node.attributes.get_int("group", 1)), *_bias(node)]


def _gemm_source(node: ir.Node, axis: int) -> list[Operand] | None:
    if known(node.inputs[1]) is None or axis != -1:
        return None
    weight = Operand(node, 1, 1 - node.attributes.get_int("transB", 0))
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return [weight]
    bias = _vector(node, 2, axis)
    return None if bias is None else [weight, bias]


def _matmul_source(node: ir.Node, axis: int) -> list[Operand] | None:
    dims = known(node.inputs[1])
    return [Operand(node, 1, 1)] if dims is not None and len(dims) == 2 and axis == -1 else None


def _norm_source(node: ir.Node, axis: int) -> list[Operand] | None:
    """A normalization over the last axis, and a factor and an addend for each channel after it."""
    if node.attributes.get_int("axis", -1) != -1 or axis != -1:
        return None
    return [Operand(node, 1), *_bias(node)] if len(known(node.inputs[1]) or ()) == 1 else None


def _channel_norm_source(node: ir.Node, axis: int) -> list[Operand] | None:
    """A normalization of each channel along axis 1, with a factor and an addend after it."""
    dims = _dims(node.inputs[0])
    if dims is None or axis != 1 - len(dims) or node.attributes.get_int("training_mode", 0) == 1:
        return None
    return [Operand(node, 1), Operand(node, 2)]


def _mul_source(node: ir.Node, axis: int) -> list[Operand] | None:
    if any(_is_one_number(value) for value in node.inputs):
        return None
    vectors = [found for index in (0, 1) if (found := _vector(node, index, axis))]
    return vectors if len(vectors) == 1 else None


_SOURCES = {
    "BatchNormalization": _channel_norm_source,
    "Conv": _conv_source,
    "ConvTranspose": _conv_source,
    "Gemm": _gemm_source,
    "InstanceNormalization": _channel_norm_source,
    "LayerNormalization": _norm_source,
    "MatMul": _matmul_source,
    "Mul": _mul_source,
    "RMSNormalization": _norm_source,
}


def _bias(node: ir.Node) -> list[Operand]:
    return [Operand(node, 2)] if len(node.inputs) > 2 and node.inputs[2] is not None else []


def _vector(node: ir.Node, index: int, axis: int) -> Operand | None:
    """Return an operand that is a constant with a number for each channel, and nothing else."""
    dims = known(node.inputs[index])
    if dims is None or len(dims) < -axis:
        return None
    place = axis + len(dims)
    alone = all(dim == 1 for number, dim in enumerate(dims) if number != place)
    return Operand(node, index, place) if alone else None


def _is_one_number(value: ir.Value | None) -> bool:
    dims = known(value)
    return dims is not None and all(dim == 1 for dim in dims)


def _is_relu(node: ir.Node) -> bool:
    """Whether a Clip has the lower limit 0 and no upper one."""
    if len(node.inputs) < 2 or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return False
    low = constant_tensor(node.inputs[1])
    return low is not None and not np.any(low.numpy())


def _dims(value: ir.Value | None) -> tuple[int | ir.SymbolicDim, ...] | None:
    return None if value is None or value.shape is None else tuple(value.shape)


def _order(node: ir.Node) -> list[int] | None:
    if "perm" not in node.attributes:
        return None
    return [int(axis) for axis in node.attributes["perm"].as_ints()]


def _flattens(node: ir.Node, axis: int) -> bool:
    """Whether [N, C, 1, ...] becomes [N, C]."""
    before, after = _dims(node.inputs[0]), _dims(node.outputs[0])
    if before is None or after is None or axis != -1 or len(before) < 3 or len(after) != 2:
        return False
    ones = all(dim == 1 for dim in before[2:])
    return ones and isinstance(before[1], int) and before[1] == after[1]
