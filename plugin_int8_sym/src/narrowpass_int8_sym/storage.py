"""Adds int8 weights to a graph: the integers, their scales, and a DequantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.weights import Array, QuantizedTensor
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import nested_graphs, reserve_name


def taken_names(model: ir.Model) -> set[str | None]:
    """Return the names of all nodes and values of a model's graphs."""
    found: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        found |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph:
            found |= {node.name, *(value.name for value in node.outputs)}
    return found


def add_quantized_weight(
    weight: ir.Value,
    axis: int | None,
    scales: Array,
    taken: set[str | None],
    *,
    factor: float = 1.0,
) -> ir.Value:
    """Add the int8 form of a constant weight to its graph.

    Args:
        weight: an initializer, or the output of a Constant node; float32, finite.
        axis: along which scales differ; None for one scale.
        scales: float32 [] or [C], of the integers.
        taken: names in use; new ones are added.
        factor: multiplies the dequantized weight; folded into its scales.

    Returns:
        The dequantized weight, float32, for the nodes that read it.
    """
    tensor, producer = constant_tensor(weight), weight.producer()
    graph = weight.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{weight.name!r} is no constant of a graph")
    name = weight.name or "weight"
    elements = QuantizedTensor(tensor, scales, axis, reserve_name(f"{name}.int8", taken))
    multiplied = scales if factor == 1.0 else (scales * np.float32(factor)).astype(np.float32)
    return add_dequantize_linear(graph, elements, [multiplied], axis, name, taken)


def add_dequantize_linear(
    graph: ir.Graph,
    elements: ir.TensorProtocol,
    parameters: Sequence[Array],
    axis: int | None,
    name: str,
    taken: set[str | None],
) -> ir.Value:
    """Add integers and their DequantizeLinear at the beginning of a graph; return its result.

    Args:
        graph: to add to.
        elements: the integers; their name must be unused.
        parameters: the scales, and the zero point where there is one.
        axis: along which scales differ; None for one scale.
        name: the prefix of the names of new values and nodes.
        taken: names in use; new ones are added.
    """
    kinds = zip(("scale", "zero_point"), parameters, strict=False)
    tensors = [
        ir.Tensor(array, name=reserve_name(f"{name}.{kind}", taken)) for kind, array in kinds
    ]
    inputs = [add_initializer(graph, each) for each in (elements, *tensors)]
    result = ir.Value(
        name=reserve_name(f"{name}.float", taken),
        shape=ir.Shape(tuple(elements.shape.numpy())),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    node = ir.node(
        "DequantizeLinear",
        inputs,
        attributes={} if axis is None else {"axis": axis},
        outputs=[result],
        name=reserve_name(f"{name}/DequantizeLinear", taken),
    )
    graph.insert_before(next(iter(graph)), node)
    return result


def drop_unread(weight: ir.Value) -> None:
    """Remove a constant that has no consumers any more."""
    if weight.uses() or weight.is_graph_output():
        return
    producer = weight.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif weight.graph is not None and weight.name and weight.is_initializer():
        del weight.graph.initializers[weight.name]


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph as an initializer, named as the tensor."""
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tuple(tensor.shape.numpy())),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.initializers[tensor.name or ""] = value
    return value
