"""How each operator propagates per-channel factors.

An axis is counted from the end, as broadcasting does: -1 is the last. Factors are positive.

A *source* produces the value, and its constants can be divided. A *sink* consumes it, and its
constant can be multiplied. Other operators propagate factors from inputs to the output, because
they compute each channel separately and are homogeneous: ``f(x / s) = f(x) / s``. That holds for
Relu, LeakyRelu and PRelu, and for pools. It holds for a Clip from 0 upwards without an upper limit;
any other limit is the same for all channels, and that samples do not reach it proves nothing of
other data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelConstant, constant_shape
from narrowpass_ir.constants import constant_tensor

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
_BINARY = frozenset({"Add", "Max", "Min", "Sub"})
_FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})


def find_sources(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    """Return the constants of a node that can be divided for its output to be.

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


def find_sink(node: ir.Node, index: int, axis: int) -> ChannelConstant | None:
    """Return the constant that multiplies the channels of input `index`; None for no sink."""
    if node.domain:
        return None
    if node.op_type == "Mul":
        return None if _is_one_number(node.inputs[1 - index]) else _vector(node, 1 - index, axis)
    other = constant_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    if index != 0 or other is None or len(other) < 2:
        return None
    if node.op_type == "Conv":
        return _conv_sink(node, other) if axis == 1 - len(other) else None
    if node.op_type == "ConvTranspose":
        return ChannelConstant(node, 1) if axis == 1 - len(other) else None
    if len(other) != 2 or axis != -1:
        return None
    if node.op_type == "MatMul":
        return ChannelConstant(node, 1)
    if node.op_type == "Gemm" and not node.attributes.get_int("transA", 0):
        return ChannelConstant(node, 1, node.attributes.get_int("transB", 0))
    return None


def propagate_backward(
    node: ir.Node, axis: int
) -> tuple[Mapping[int, int], list[ChannelConstant]] | None:
    """Return the inputs and constants to divide for the first output of a node to be divided.

    Args:
        node: one that propagates factors.
        axis: of the channels in the output.

    Returns:
        The channel axis of each input to divide, by its index, and the constants to divide; None
        for nodes that propagate no factors.
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
    if kind not in _BINARY or len(node.inputs) != 2:
        return None
    constants = [index for index in (0, 1) if constant_tensor(node.inputs[index]) is not None]
    if not constants:
        return {0: axis, 1: axis}, []
    vector = _vector(node, constants[0], axis)
    return ({1 - constants[0]: axis}, [vector]) if vector and len(constants) == 1 else None


def propagate_forward(node: ir.Node, index: int, axis: int) -> int | None:
    """Return the axis of the channels in a node's output from that in its input `index`.

    None where the node propagates no factors.
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
    passed = propagate_backward(node, out)
    return out if passed is not None and passed[0].get(index) == axis else None


def _conv_sink(node: ir.Node, dims: tuple[int, ...]) -> ChannelConstant:
    groups = node.attributes.get_int("group", 1)
    if groups > 1 and dims[1] == 1:
        return ChannelConstant(node, 1, 0, repeats=dims[0] // groups)
    return ChannelConstant(node, 1, 1, groups)


def _conv_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    dims = constant_shape(node.inputs[1])
    if dims is None or axis != 1 - len(dims):
        return None
    if node.op_type == "Conv":
        return [ChannelConstant(node, 1), *_bias(node)]
    return [ChannelConstant(node, 1, 1, node.attributes.get_int("group", 1)), *_bias(node)]


def _gemm_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    if constant_shape(node.inputs[1]) is None or axis != -1:
        return None
    weight = ChannelConstant(node, 1, 1 - node.attributes.get_int("transB", 0))
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return [weight]
    bias = _vector(node, 2, axis)
    return None if bias is None else [weight, bias]


def _matmul_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    dims = constant_shape(node.inputs[1])
    return (
        [ChannelConstant(node, 1, 1)]
        if dims is not None and len(dims) == 2 and axis == -1
        else None
    )


def _norm_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    """LayerNormalization over the last axis: its scale and bias are the sources."""
    if node.attributes.get_int("axis", -1) != -1 or axis != -1:
        return None
    return (
        [ChannelConstant(node, 1), *_bias(node)]
        if len(constant_shape(node.inputs[1]) or ()) == 1
        else None
    )


def _channel_norm_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
    """BatchNormalization or InstanceNormalization: scale and bias of axis 1 are the sources."""
    dims = _dims(node.inputs[0])
    if dims is None or axis != 1 - len(dims) or node.attributes.get_int("training_mode", 0) == 1:
        return None
    return [ChannelConstant(node, 1), ChannelConstant(node, 2)]


def _mul_source(node: ir.Node, axis: int) -> list[ChannelConstant] | None:
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


def _bias(node: ir.Node) -> list[ChannelConstant]:
    return [ChannelConstant(node, 2)] if len(node.inputs) > 2 and node.inputs[2] is not None else []


def _vector(node: ir.Node, index: int, axis: int) -> ChannelConstant | None:
    """Return an operand that is a constant vector of channels; None for any other."""
    dims = constant_shape(node.inputs[index])
    if dims is None or len(dims) < -axis:
        return None
    place = axis + len(dims)
    alone = all(dim == 1 for number, dim in enumerate(dims) if number != place)
    return ChannelConstant(node, index, place) if alone else None


def _is_one_number(value: ir.Value | None) -> bool:
    dims = constant_shape(value)
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
