"""Multiplications by a row before products, where no constant that is there can take factors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.axes import Place
from narrowpass_int8_sym.channels.operand import Operand
from narrowpass_int8_sym.channels.operators import sink
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.rewrite import unique_name


def insert_row(
    model: ir.Model, value: ir.Value, weighted_nodes: Sequence[ir.Node]
) -> Region | None:
    """Multiply what products read by a row of ones, which can take the factors of a region.

    Args:
        model: changed.
        value: what is multiplied; others may read it, too, and read it as it was.
        weighted_nodes: MatMul or Gemm with constants for weights that read the value as their first
            input; all in the model's graph.

    Returns:
        The region from the multiplication to the products; None where a weight cannot be changed,
        or the value has but one channel.
    """
    found = [operand for node in weighted_nodes if (operand := sink(node, 0, -1)) is not None]
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
    place = Place(output, -1)
    sinks = tuple((operand, place) for operand in found)
    return Region((place,), (Operand(node, 1),), sinks, channels)


def remove_row(model: ir.Model, region: Region) -> None:
    """Undo `insert_row`, whose row is still of ones."""
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
