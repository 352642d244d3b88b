"""Scales the constants of a region by its factors.

Where no existing constant can be scaled, a Mul by factors is inserted before matmuls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelAxis, ChannelConstant
from narrowpass_int8_sym.channels.operators import find_sink
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.weights import add_initializer, taken_names
from narrowpass_ir.subgraphs import reserve_name

Array = np.ndarray[Any, Any]


def scale_constants(model: ir.Model, region: Region, factors: Array) -> bool:
    """Divide the values of a region by a factor for each channel, by scaling its constants.

    Args:
        model: changed; its tensors are replaced, never written to.
        region: of the model.
        factors: [C], positive, float64.

    Returns:
        False, with nothing changed, where a constant would overflow.
    """
    scaled: dict[tuple[ir.Node, int], tuple[ChannelConstant, Array]] = {}
    shares = [(operand, 1 / factors) for operand in region.sources]
    shares += [(operand, factors) for operand, _ in region.sinks]
    for operand, share in shares:
        # A weight within a residual block can be both source and sink.
        key = operand.node, operand.index
        array = scaled[key][1] if key in scaled else operand.read()
        with np.errstate(over="ignore"):
            scaled[key] = operand, (array * operand.spread(share)).astype(np.float32)
    if not all(np.isfinite(array).all() for _, array in scaled.values()):
        return False
    for operand, array in scaled.values():
        replace_constant(model, operand, array)
    return True


def replace_constant(model: ir.Model, operand: ChannelConstant, array: Array) -> None:
    """Replace a constant operand of a node.

    An initializer that no other node reads keeps its name; one that others read stays, and the node
    gets a new one.
    """
    old = operand.value
    if old.producer() is None and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = ir.Tensor(array, name=old.name)
        old.shape = ir.Shape(array.shape)
        return
    name = reserve_name(f"{old.name}.scaled", taken_names(model))
    new = add_initializer(model.graph, ir.Tensor(array, name=name))
    operand.node.replace_input_with(operand.index, new)
    producer = old.producer()
    if producer is not None and not old.uses() and not old.is_graph_output():
        model.graph.remove(producer, safe=True)


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
    row_name = reserve_name(f"{value.name}.factors", taken_names(model))
    row = add_initializer(model.graph, ir.Tensor(np.ones(channels, np.float32), name=row_name))
    name = reserve_name(f"{value.name}.smoothed", taken_names(model))
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
