"""Scales the constants of a region by its factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_ir.subgraphs import nested_graphs

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
    name = unique_name(model, f"{old.name}.scaled")
    new = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(array, name=name),
    )
    model.graph.initializers[name] = new
    operand.node.replace_input_with(operand.index, new)
    producer = old.producer()
    if producer is not None and not old.uses() and not old.is_graph_output():
        model.graph.remove(producer, safe=True)


def unique_name(model: ir.Model, wanted: str) -> str:
    """Return a name that no value or node of a model has: `wanted`, or with a number."""
    taken: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        taken |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        taken |= {value.name for node in graph for value in node.outputs}
        taken |= {node.name for node in graph}
    chosen, number = wanted, 1
    while chosen in taken:
        chosen, number = f"{wanted}.{number}", number + 1
    return chosen
