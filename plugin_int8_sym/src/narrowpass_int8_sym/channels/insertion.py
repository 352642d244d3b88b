"""Inserts a Mul by per-channel factors before matmuls, where no existing constant can be scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.axes import ChannelAxis
from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.operators import find_sink
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.rewrite import unique_name


def insert_mul(
    model: ir.Model, value: ir.Value, weighted_nodes: Sequence[ir.Node]
) -> Region | None:
    """Insert a Mul by ones, [channels], before matmuls; it is the source constant of a region.

    Args:
        model: changed.
        value: what is multiplied; its other consumers still read the value itself.
        weighted_nodes: MatMul or Gemm with constant weights that read the value as their first
            input; all in the model's graph.

    Returns:
        The region from the Mul to the matmuls; None where a weight cannot be changed, or the value
        has only one channel.
    """
    found = [operand for node in weighted_nodes if (operand := find_sink(node, 0, -1)) is not None]
    counts = {operand.channels for operand in found}
    if len(found) < len(weighted_nodes) or len(counts) != 1 or counts == {1}:
        return None
    if any(operand.obstacle() for operand in found):
        return None
    (channels,) = counts
    row = _ones(model, unique_name(model, f"{value.name}.factors"), channels)
    name = unique_name(model, f"{value.name}.smoothed")
    output = ir.Value(name=name, type=value.type, shape=value.shape)
    node = ir.Node("", "Mul", [value, row], outputs=[output], name=name)
    producer = value.producer()
    if producer is None:
        model.graph.insert_before(model.graph[0], node)
    else:
        model.graph.insert_after(producer, node)
    for weighted in weighted_nodes:
        weighted.replace_input_with(0, output)
    channel_axis = ChannelAxis(output, -1)
    sinks = tuple((operand, channel_axis) for operand in found)
    return Region((channel_axis,), (ChannelConstant(node, 1),), sinks, channels)


def remove_mul(model: ir.Model, region: Region) -> None:
    """Undo `insert_mul`, while the factors are still ones."""
    (operand,) = region.sources
    node, row = operand.node, operand.value
    for use in tuple(node.outputs[0].uses()):
        use.node.replace_input_with(use.idx, node.inputs[0])
    model.graph.remove(node, safe=True)
    del model.graph.initializers[row.name or ""]


def _ones(model: ir.Model, name: str, channels: int) -> ir.Value:
    row = np.ones(channels, np.float32)
    value = ir.Value(
        name=name,
        shape=ir.Shape(row.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(row, name=name),
    )
    model.graph.initializers[name] = value
    return value
