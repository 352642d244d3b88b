"""A weight in bytes in a model: its elements, its scales, and the DequantizeLinear of both."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass_int8_sym.weights import quantized


def store(weight: ir.Value, axis: int | None, least: float, taken: set[str | None]) -> ir.Value:
    """Add a weight in bytes to the graph that has it as a constant.

    Args:
        weight: an initializer, or what a Constant node gives; float32.
        axis: along which scales differ; None for one scale.
        least: the least scale.
        taken: names that others have; those of new values are added.

    Returns:
        The weight in float32 again, for the nodes that read it.

    Raises:
        DataError: an element is infinite or NaN.
    """
    tensor, producer = constant_tensor(weight), weight.producer()
    graph = weight.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{weight.name!r} is no constant of a graph")
    name = weight.name or "weight"
    stored = _unique(f"{name}.int8", taken)
    elements, scales = quantized(tensor, axis, stored, least)
    scale = ir.Tensor(scales, name=_unique(f"{name}.scale", taken))
    inputs = [_initializer(graph, each) for each in (elements, scale)]
    result = ir.Value(
        name=_unique(f"{name}.float", taken),
        shape=ir.Shape(tuple(tensor.shape.numpy())),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    node = ir.node(
        "DequantizeLinear",
        inputs,
        attributes={} if axis is None else {"axis": axis},
        outputs=[result],
        name=_unique(f"{name}/DequantizeLinear", taken),
    )
    graph.insert_before(next(iter(graph)), node)
    return result


def drop_unread(weight: ir.Value) -> None:
    """Remove a constant that nobody reads any more."""
    if weight.uses() or weight.is_graph_output():
        return
    producer = weight.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif weight.graph is not None and weight.name and weight.name in weight.graph.initializers:
        del weight.graph.initializers[weight.name]


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tuple(tensor.shape.numpy())),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.initializers[tensor.name or ""] = value
    return value


def _unique(name: str, taken: set[str | None]) -> str:
    chosen, number = name, 1
    while chosen in taken:
        chosen, number = f"{name}.{number}", number + 1
    taken.add(chosen)
    return chosen
