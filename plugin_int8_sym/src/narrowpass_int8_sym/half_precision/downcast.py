"""Restores float16 or bfloat16 in nodes that have not become int8."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from narrowpass_int8_sym.half_precision.casts import (
    BORDER,
    FLOAT,
    MARK,
    UpcastTensor,
    cast_behind,
    graph_of,
    is_cast,
    remove,
    replace_output,
)
from narrowpass_int8_sym.storage import add_initializer, taken_names
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import ConvertedTensor
from narrowpass_ir.subgraphs import nested_graphs, reserve_name

_EPILOGUE = frozenset(
    {"Add", "Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Tanh"}
)
"""Operators that a backend fuses into the epilogue of the matmul or convolution before them."""


def downcast(model: ir.Model) -> None:
    """Undo `upcast`, except in nodes that stay float32.

    Args:
        model: changed.
    """
    _Downcast(model).run()


def keep_float32(nodes: Iterable[ir.Node]) -> None:
    """Keep nodes in float32, because they have become int8: `downcast` skips them."""
    for node in nodes:
        node.metadata_props.pop(MARK, None)


def keep_epilogue_float32(weighted: ir.Node) -> None:
    """Keep a weighted node and its fused epilogue in float32."""
    node = weighted
    while True:
        keep_float32([node])
        uses = tuple(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            return
        node = uses[0].node
        computed = [v for v in node.inputs if v is not None and constant_tensor(v) is None]
        if node.op_type not in _EPILOGUE or MARK not in node.metadata_props or len(computed) != 1:
            return


class _Downcast:
    """One call of `downcast`."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken = taken_names(model)
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._constants: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        nodes = list(self._model.graph.all_nodes())
        read: dict[ir.Node, tuple[ir.DataType, list[int]]] = {}
        computed: dict[ir.Value, ir.DataType] = {}
        for node in nodes:
            mark = node.metadata_props.pop(MARK, None)
            if mark is None:
                continue
            name, inputs, outputs = mark.split(";")
            dtype = ir.DataType[name]
            read[node] = dtype, _numbers(inputs)
            computed.update((node.outputs[index], dtype) for index in _numbers(outputs))
        for value, dtype in computed.items():
            value.type = ir.TensorType(dtype)
        borders = [node for node in nodes if node.metadata_props.pop(BORDER, None) is not None]
        for value, dtype in computed.items():
            self._connect_consumers(value, dtype, read)
        for node, (dtype, indices) in read.items():
            for index in indices:
                given = node.inputs[index]
                if given is not None and given not in computed:
                    node.replace_input_with(index, self._half(given, dtype, read))
        for border in borders:
            result = border.outputs[0]
            if not result.uses() and not result.is_graph_output():
                remove(border)
        for graph in nested_graphs(self._model.graph):
            for value in list(graph.initializers.values()):
                self._store(graph, value)

    def _connect_consumers(
        self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]
    ) -> None:
        """Insert a Cast before float32 consumers of a 16-bit value, and drop Casts to 16 bits."""
        for use in tuple(value.uses()):
            if use.node in narrow or use.node.graph is None:
                continue
            result = use.node.outputs[0]
            if not is_cast(use.node, dtype):
                use.node.replace_input_with(use.idx, self._cast(value, FLOAT, "wide"))
                continue
            if result.is_graph_output():
                replace_output(self._model, result, value)
                name, result.name = result.name, reserve_name(f"{result.name}.before", self._taken)
                value.name = name
            result.replace_all_uses_with(value)
            remove(use.node)

    def _half(self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]) -> ir.Value:
        """Return the 16-bit form of a constant, or of a value computed in float32."""
        tensor, producer = value.const_value, value.producer()
        if tensor is not None and producer is None and not value.is_graph_input():
            return self._constant(value, tensor, dtype, narrow)
        given = producer.inputs[0] if producer is not None and is_cast(producer, FLOAT) else None
        if given is not None and given.dtype == dtype:
            return given
        for use in value.uses():
            if is_cast(use.node, dtype) and use.node.graph is graph_of(value):
                self._casts.setdefault((value, dtype), use.node.outputs[0])
        return self._cast(value, dtype, "narrow")

    def _constant(
        self,
        value: ir.Value,
        tensor: ir.TensorProtocol,
        dtype: ir.DataType,
        narrow: Collection[ir.Node],
    ) -> ir.Value:
        if tensor.dtype == dtype:
            return value
        key = value, dtype
        if key in self._constants:
            return self._constants[key]
        same = isinstance(tensor, UpcastTensor) and tensor.source.dtype == dtype
        alone = all(use.node in narrow for use in value.uses()) and not value.is_graph_output()
        name, graph = value.name or "constant", graph_of(value)
        if alone:
            del graph.initializers[name]
        else:
            name = reserve_name(f"{name}.narrow", self._taken)
        source = tensor.source if isinstance(tensor, UpcastTensor) and same else tensor
        self._constants[key] = _stored(graph, source, dtype, name)
        return self._constants[key]

    def _cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        key = value, dtype
        if key not in self._casts:
            name = reserve_name(f"{value.name}.{suffix}", self._taken)
            self._casts[key] = cast_behind(value, dtype, name, self._taken)
        return self._casts[key]

    def _store(self, graph: ir.Graph, value: ir.Value) -> None:
        """Restore a 16-bit constant and its Cast, if its consumers have not become int8."""
        tensor = value.const_value
        if not isinstance(tensor, UpcastTensor) or not tensor.behind_cast or not value.uses():
            return
        name = value.name or "constant"
        del graph.initializers[name]
        value.name = reserve_name(f"{name}.before", self._taken)
        stored = reserve_name(tensor.source.name or name, self._taken)
        source = _stored(graph, tensor.source, tensor.source.dtype, stored)
        result = cast_behind(source, FLOAT, name, self._taken)
        value.replace_all_uses_with(result)


def _stored(graph: ir.Graph, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.Value:
    """Add a tensor, converted to a dtype, as an initializer."""
    if tensor.dtype == dtype and tensor.name == name:
        return add_initializer(graph, tensor)
    return add_initializer(graph, ConvertedTensor(tensor, dtype, name))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
