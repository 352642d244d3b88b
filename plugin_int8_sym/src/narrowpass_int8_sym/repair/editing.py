"""Inserts Q/DQ nodes and constants into a model, under unused names."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.repair.quantization import FLOAT, Array, Quantization
from narrowpass_int8_sym.weights import add_initializer, taken_names
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

_SHARED = 4096
"""The largest size of constants that are shared if equal."""


class Editor:
    """Adds nodes and constants to a model.

    Args:
        model: changed in place.
    """

    def __init__(self, model: ir.Model) -> None:
        self.modified = False
        self._taken = taken_names(model)
        self._constants: dict[tuple[ir.Graph, str, str, tuple[int, ...], bytes], ir.Value] = {}

    def reserve_name(self, name: str) -> str:
        """Return `name`, with a number if it is in use, and mark it as used."""
        return reserve_name(name, self._taken)

    def constant(self, near: ir.Node, name: str, array: Array) -> ir.Value:
        """Return an initializer in the graph of a node; small equal ones of one name are shared."""
        graph = near.graph
        if not isinstance(graph, ir.Graph):
            raise TypeError(f"node {near.name!r} stands in no graph")
        content = array.tobytes() if array.size <= _SHARED else b""
        key = graph, name, array.dtype.str, array.shape, content
        if key not in self._constants or array.size > _SHARED:
            tensor = ir.Tensor(np.asarray(array, order="C"), name=self.reserve_name(name))
            self._constants[key] = add_initializer(graph, tensor)
        self.modified = True
        return self._constants[key]

    def parameters(self, near: ir.Node, name: str, how: Quantization) -> list[ir.Value]:
        """Return the scale and the zero point as initializers."""
        zeros = how.zero_point.astype(how.dtype.numpy())
        return [
            self.constant(near, f"{name}.scale", how.scale),
            self.constant(near, f"{name}.zero_point", zeros),
        ]

    def dequantize(self, near: ir.Node, value: ir.Value, how: Quantization) -> ir.Value:
        """Insert a DequantizeLinear before a node; return its result."""
        return self._convert("DequantizeLinear", near, value, how, "float", FLOAT)

    def quantize(self, near: ir.Node, value: ir.Value, how: Quantization) -> ir.Value:
        """Insert a QuantizeLinear before a node; return its result."""
        return self._convert("QuantizeLinear", near, value, how, how.dtype.name.lower(), how.dtype)

    def _convert(
        self,
        kind: str,
        near: ir.Node,
        value: ir.Value,
        how: Quantization,
        suffix: str,
        dtype: ir.DataType,
    ) -> ir.Value:
        name = value.name or near.name or "value"
        tensor = constant_tensor(value)
        result = ir.Value(
            name=self.reserve_name(f"{name}.{suffix}"),
            shape=value.shape if tensor is None else ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(dtype),
        )
        node = ir.node(
            kind,
            [value, *self.parameters(near, name, how)],
            attributes={} if how.axis is None else {"axis": how.axis},
            outputs=[result],
            name=self.reserve_name(f"{name}/{kind}"),
        )
        self.insert_before(near, node)
        return result

    def insert_before(self, near: ir.Node, node: ir.Node) -> None:
        """Insert a node before another, into its graph."""
        if near.graph is None:
            raise TypeError(f"node {near.name!r} stands in no graph")
        near.graph.insert_before(near, node)
        self.modified = True

    def remove(self, node: ir.Node) -> None:
        """Remove a node without consumers, and constants that only it read."""
        if node.graph is None:
            raise TypeError(f"node {node.name!r} stands in no graph")
        read = [value for value in node.inputs if value is not None]
        node.graph.remove(node, safe=True)
        for value in read:
            self.drop_unread(value)
        self.modified = True

    def replace_node(self, node: ir.Node, *values: ir.Value) -> None:
        """Replace the results of a node by values, which get their names, and remove the node.

        The names stay, because outputs of the model are identified by them.
        """
        for before, value in zip(node.outputs, values, strict=False):
            name, output = before.name, before.is_graph_output()
            before.replace_all_uses_with(value, replace_graph_outputs=output)
            before.name = self.reserve_name(f"{name}.before")
            value.name = name
            if output:
                value.type, value.shape = before.type or value.type, before.shape
        self.remove(node)

    def replace_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Replace an input of a node; a constant without further consumers is removed."""
        before = node.inputs[index] if index < len(node.inputs) else None
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        node.replace_input_with(index, value)
        if before is not None:
            self.drop_unread(before)
        self.modified = True

    def drop_unread(self, value: ir.Value) -> None:
        """Remove a constant without consumers: an initializer, or a Constant node."""
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        producer, graph = value.producer(), value.graph
        if producer is not None and is_constant(producer) and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        elif producer is None and isinstance(graph, ir.Graph) and value.is_initializer():
            del graph.initializers[value.name or ""]
            self._constants = {k: each for k, each in self._constants.items() if each is not value}


def is_constant(node: ir.Node) -> bool:
    """Return whether a node is a Constant of ONNX."""
    return node.op_type == "Constant" and not node.domain
