"""Where constants are kept: initializers, or Constant nodes where a scope has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.scopes import (
    FIRST_IR_WITH_PLAIN_INITIALIZERS,
    output_positions,
    roots,
)
from narrowpass_ir.subgraphs import nested_graphs


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor that a value always has, or None. Its data is not read."""
    if value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    return None if producer is None or not is_constant(producer) else tensor_of(producer)


def is_constant(node: ir.Node) -> bool:
    """Whether the node is a Constant of the standard domain."""
    return node.op_type == "Constant" and node.domain == ""


def tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node.

    None for a sparse value, and for one that is an attribute of the enclosing function.
    """
    if len(node.attributes) != 1:
        return None
    ((name, attribute),) = node.attributes.items()
    if attribute.is_ref():
        return None
    match name:
        case "value":
            # Its kind is known from its name; `as_tensor` checks a protocol at some expense.
            tensor: ir.TensorProtocol = attribute.value
            return tensor
        case "value_float":
            return ir.Tensor(np.array(attribute.as_float(), np.float32))
        case "value_floats":
            return ir.Tensor(np.array(attribute.as_floats(), np.float32))
        case "value_int":
            return ir.Tensor(np.array(attribute.as_int(), np.int64))
        case "value_ints":
            return ir.Tensor(np.array(attribute.as_ints(), np.int64))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            texts = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
    return None


class Store:
    """Puts results in the place of node outputs, in graphs that it has outputs indexed of."""

    def __init__(self, initializer_graphs: frozenset[ir.Graph]) -> None:
        """Take the graphs that can hold initializers."""
        self._initializer_graphs = initializer_graphs
        self._positions: dict[ir.Graph, dict[ir.Value, list[int]]] = {}

    def holds_initializers(self, graph: ir.Graph) -> bool:
        """Whether results in `graph` become initializers."""
        return graph in self._initializer_graphs

    def replace(self, node: ir.Node, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Replace all uses of `old` by a constant of the same name that holds `tensor`.

        Args:
            node: the producer of `old`; it stays, unused.
            old: the output to replace.
            tensor: its value.
        """
        graph = node.graph
        if graph is None:
            raise ValueError(f"node {node.name!r} belongs to no graph")
        new = _like(old, tensor)
        if self.holds_initializers(graph):
            new.const_value = tensor
            # The old value frees its name only with its node; the dictionary knows initializers.
            graph.initializers.add(new)
        else:
            attribute = ir.AttrTensor("value", tensor)
            # The name of the node that goes: that of the value may be another node's.
            name = node.name if old is node.outputs[0] else None
            constant = ir.Node("", "Constant", [], [attribute], outputs=[new], name=name)
            graph.insert_before(node, constant)
        if old.is_graph_output():
            for position in self._outputs(graph).pop(old):
                graph.outputs[position] = new
        old.replace_all_uses_with(new)
        return new

    def _outputs(self, graph: ir.Graph) -> dict[ir.Value, list[int]]:
        if graph not in self._positions:
            self._positions[graph] = output_positions(graph)
        return self._positions[graph]


def _like(old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    # What a graph output declares is part of the signature, also where it says less.
    declared = old.is_graph_output()
    new = ir.Value(
        name=old.name,
        type=old.type if declared and old.type else ir.TensorType(tensor.dtype),
        shape=old.shape if declared else ir.Shape(tensor.shape.numpy()),
        doc_string=old.doc_string,
    )
    new.metadata_props.update(old.metadata_props)
    return new


def initializer_graphs(model: ir.Model) -> frozenset[ir.Graph]:
    """Return the graphs of a model that can hold initializers which are no inputs.

    The bodies of functions cannot, nor can any graph below IR version 4.
    """
    if (model.ir_version or 0) < FIRST_IR_WITH_PLAIN_INITIALIZERS:
        return frozenset()
    return frozenset(
        graph
        for root in roots(model)
        for graph in nested_graphs(root.graph)
        if not (root.is_function and graph is root.graph)
    )


_SMALL = 1024


def small_array(tensor: ir.TensorProtocol | None) -> np.ndarray[Any, Any] | None:
    """Return the array of a small numeric tensor, such as a shape, axes or pads; else None."""
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.size > _SMALL:
        return None
    return tensor.numpy()
