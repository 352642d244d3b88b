"""Bias correction: the mean error that rounding of weights adds is subtracted from the bias.

After M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV 2019. A matmul or convolution with rounded weights ``Wq`` returns ``Wq x`` for ``W x``. Where
the mean of ``x`` is not zero, as after a Relu, the mean of ``(Wq - W) x`` is not zero either, and
it is the same for each element of an output channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelAxis, ChannelConstant, constant_shape
from narrowpass_int8_sym.channels.rewrite import replace_constant
from narrowpass_int8_sym.channels.statistics import observe_channels
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_int8_sym.weights import add_initializer, quantized, taken_names
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

SAMPLES = 16
"""The largest number of samples that means are measured on."""

LEAST_SHARE = 0.5
"""The share of the squared error that the mean must have in a channel of MatMul or Gemm.

In transformers nine tenths of the error vary from row to row. The mean of a few hundred rows says
little of other rows then, and subtracting it did not improve measured results. A convolution has
thousands of elements in each sample, which estimate even a small mean well.
"""


def bias_shifts(
    model: ir.Model,
    weighted_nodes: Mapping[int, WeightedNode],
    samples: Samples,
    target: Backend | None,
    *,
    per_channel: bool,
    least: float = 0.0,
    limit: int = SAMPLES,
) -> dict[str, Array]:
    """Return the correction of each bias; weighted nodes without a bias get one where they can.

    Args:
        model: changed by `own_bias`.
        weighted_nodes: by the number of the node among all of the model.
        samples: feeds for the model.
        target: what runs it; see `mean_shifts`.
        per_channel: whether weights have a scale for each channel of the result.
        least: the least scale of a weight.
        limit: how many samples are looked at, at most.

    Returns:
        What `subtract_from_bias` subtracts, by the name of the bias.
    """
    found = {number: own_bias(model, weighted) for number, weighted in weighted_nodes.items()}
    biases = {number: bias for number, bias in found.items() if isinstance(bias, ir.Value)}
    # Constant nodes may have been removed, which changes the indices of nodes.
    indices = {node: index for index, node in enumerate(model.graph.all_nodes())}
    numbers = {number: indices[weighted_nodes[number].node] for number in biases}
    chosen = {numbers[number]: weighted_nodes[number] for number in biases}
    shifts = mean_shifts(
        model,
        chosen,
        samples,
        target,
        per_channel=per_channel,
        least=least,
        limit=limit,
        least_share=LEAST_SHARE,
    )
    return {
        bias.name or "": shifts[numbers[number]]
        for number, bias in biases.items()
        if numbers[number] in shifts
    }


def mean_shifts(
    model: ir.Model,
    weighted_nodes: Mapping[int, WeightedNode],
    samples: Samples,
    target: Backend | None,
    *,
    per_channel: bool,
    least: float = 0.0,
    limit: int = SAMPLES,
    least_share: float = 0.0,
) -> dict[int, Array]:
    """Return how far rounded weights shift the mean of each output channel.

    The model runs with a copy of each weighted node whose weight is the rounding error ``Wq - W``,
    so that padding and strides of convolutions count as they do in the model.

    Args:
        model: in float32; not changed.
        weighted_nodes: by the number of the node among all of the model; those within other nodes
            are left out.
        samples: feeds for the model.
        target: what runs the model; the reference evaluator where it is None or not available.
        per_channel: whether weights have a scale for each channel of the result.
        least: the least scale of a weight.
        limit: how many samples are looked at, at most.
        least_share: channels of MatMul and Gemm where the mean is a smaller share of the squared
            error get 0.

    Returns:
        float64 [channels of the result], by the same numbers.

    Raises:
        DataError: a weight or a value is infinite or NaN.
    """
    clone = model.clone()
    nodes = list(clone.graph.all_nodes())
    channel_axes: dict[int, ChannelAxis] = {}
    for number, weighted in weighted_nodes.items():
        node = nodes[number]
        if node.graph is not clone.graph:
            continue
        error = _rounding_error(weighted, weighted.axis if per_channel else None, least)
        twin = _insert_error_node(clone, node, weighted.index, error)
        rank = len(constant_shape(weighted.weight) or ())
        convolution = node.op_type in ("Conv", "ConvTranspose")
        channel_axes[number] = ChannelAxis(twin.outputs[0], 1 - rank if convolution else -1)
    found = observe_channels(clone, list(channel_axes.values()), samples, target, limit)
    shifts: dict[int, Array] = {}
    for number, channel_axis in channel_axes.items():
        seen = found[channel_axis.value.name or ""].all
        share = least_share if weighted_nodes[number].is_matrix else 0.0
        shifts[number] = np.where(seen.mean**2 >= share * seen.square, seen.mean, 0.0)
    return shifts


def own_bias(model: ir.Model, weighted: WeightedNode) -> ir.Value | str:
    """Return the bias of a weighted node: a constant [channels] that no other node reads.

    Args:
        model: changed, but for its tensors: a Conv, ConvTranspose or Gemm without bias gets zeros,
            and one that others read, too, is copied.
        weighted: of the model. A MatMul has a bias where nothing but an addition of a constant for
            each channel reads it.

    Returns:
        The constant, or why there is none.
    """
    node = weighted.node
    if node.op_type == "MatMul":
        operand = _addend(weighted)
        if isinstance(operand, str):
            return operand
    elif node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) == 0:
        return "its beta is 0"
    else:
        operand = ChannelConstant(node, 2)
        if len(node.inputs) < 3 or node.inputs[2] is None:
            _add_bias(model, node, np.zeros(weighted.output_channels, np.float32))
    bias = constant_tensor(operand.value)
    if bias is None or operand.value.is_graph_input() or bias.dtype != ir.DataType.FLOAT:
        return "its bias is no float32 constant"
    if any(size != 1 for size in bias.shape.numpy()[:-1]):
        return "its bias is no number for each channel"
    count, row = weighted.output_channels, np.asarray(bias.numpy())
    shared = len(operand.value.uses()) > 1 or operand.value.is_graph_output()
    if bias.size != count or shared or operand.value.producer() is not None:
        replace_constant(
            model, operand, row if row.size == count else np.repeat(row.reshape(-1), count)
        )
    return operand.value


def subtract_from_bias(weighted: WeightedNode, bias: ir.Value, shift: Array) -> None:
    """Subtract a shift, [channels of the result], from a bias of `own_bias`."""
    tensor = constant_tensor(bias)
    if tensor is None:
        raise ValueError(f"{bias.name!r} is no constant")
    node = weighted.node
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    row = tensor.numpy()
    bias.const_value = ir.Tensor(
        (row - (shift / beta).reshape(row.shape)).astype(np.float32), name=bias.name
    )


def _rounding_error(weighted: WeightedNode, axis: int | None, least: float) -> Array:
    """Return ``Wq - W``, float32, in the layout in which the node reads its weight."""
    weight = constant_tensor(weighted.weight)
    if weight is None:
        raise ValueError(f"{weighted.weight.name!r} is no constant")
    rounded, scales = quantized(weight, axis, "", least)
    wide = np.asarray(weight.numpy(), np.float32)
    if axis is not None:
        scales = scales.reshape([-1 if each == axis else 1 for each in range(wide.ndim)])
    error: Array = rounded.numpy().astype(np.float32) * scales - wide
    return error if weighted.transpose is None else np.ascontiguousarray(error.T)


def _insert_error_node(model: ir.Model, node: ir.Node, index: int, error: Array) -> ir.Node:
    """Insert a copy of a node after it, with another weight and without bias."""
    name = reserve_name(f"{node.outputs[0].name}.error", taken_names(model))
    weight = add_initializer(model.graph, ir.Tensor(error, name=f"{name}.weight"))
    output = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
    inputs = [weight if number == index else node.inputs[number] for number in (0, 1)]
    twin = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[output], name=name)
    model.graph.insert_after(node, twin)
    return twin


def _addend(weighted: WeightedNode) -> ChannelConstant | str:
    """Return the constant that is added to the result of a MatMul, and to nothing else."""
    result = weighted.node.outputs[0]
    uses = result.uses()
    add = next(iter(uses)).node if len(uses) == 1 else None
    if add is None or add.op_type != "Add" or add.domain or result.is_graph_output():
        return "no addition of a bias alone reads it"
    operand = ChannelConstant(add, 1 if add.inputs[0] is result else 0)
    bias = constant_tensor(add.inputs[operand.index])
    if bias is None or bias.size != weighted.output_channels:
        return "what is added to it is no number for each channel"
    return operand


def _add_bias(model: ir.Model, node: ir.Node, bias: Array) -> None:
    name = reserve_name(f"{node.outputs[0].name}.bias", taken_names(model))
    value = add_initializer(model.graph, ir.Tensor(bias, name=name))
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, value)
