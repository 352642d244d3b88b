"""Metadata and Casts that `upcast` and `downcast` share."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from narrowpass_ir.io import ConvertedTensor
from narrowpass_ir.subgraphs import nested_graphs, reserve_name

FLOAT = ir.DataType.FLOAT


HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


MARK = "narrowpass.int8-sym.half"
"""Metadata of nodes that are float32 between `upcast` and `downcast`: their 16-bit type, and the
indices of inputs and outputs that have it. Removed by `downcast`."""


BORDER = "narrowpass.int8-sym.border"
"""Metadata of Casts that `upcast` has inserted."""


class UpcastTensor(ConvertedTensor):
    """A 16-bit constant, converted to float32.

    Attributes:
        behind_cast: whether the model itself converts it, by a Cast.
    """

    def __init__(self, source: ir.TensorProtocol, name: str | None, *, behind_cast: bool) -> None:
        super().__init__(source, FLOAT, name)
        self.behind_cast = behind_cast


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph of a value."""
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise ValueError(f"{value.name!r} is in no graph")
    return graph


def remove(node: ir.Node) -> None:
    """Remove a node from its graph, if it is still in one."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def is_cast(node: ir.Node | None, dtype: ir.DataType) -> bool:
    """Return whether a node is a Cast to a type."""
    if node is None or node.op_type != "Cast" or node.domain:
        return False
    return node.attributes.get_int("to", 0) == int(dtype)


def _behind(value: ir.Value, node: ir.Node) -> None:
    """Insert a node after the producer of a value, or at the beginning of its graph."""
    producer, graph = value.producer(), graph_of(value)
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def cast_behind(
    value: ir.Value,
    dtype: ir.DataType,
    name: str,
    taken: set[str | None],
    metadata: Mapping[str, str] | None = None,
) -> ir.Value:
    """Insert a Cast of a value; return its result, named `name`."""
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    node = ir.node("Cast", [value], {"to": int(dtype)}, outputs=[result])
    node.name = reserve_name(f"{name}/Cast", taken)
    node.metadata_props.update(metadata or {})
    _behind(value, node)
    return result


def replace_output(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Replace a value among the outputs of all graphs."""
    for graph in nested_graphs(model.graph):
        for place, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[place] = new
