"""Types and ranks of a graph's values, node by node, with ONNX's own inference.

Node by node, because that lets what makes no sense be dropped between nodes: a dimension below 0,
from a window that is larger than its image, ends the process in the inference of a later Slice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from narrowpass.subgraphs import subgraphs as find_subgraphs

_DATA = 1024
"""Elements up to which a constant is given to the inference: shapes, axes, pads."""

_SCALES = 16
"""The same for floats: the scales of a Resize, and not biases, which shapes do not follow from."""

_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.BOOL}
_UNKNOWN = onnx.TypeProto()

_TARGET = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose output has as many dimensions as the input of this index has elements."""


def infer(model: ir.Model, *, subgraphs: bool = False) -> None:
    """Give the values of the main graph types and shapes, as far as they follow, in place.

    What the model declares of a value between nodes counts where nothing follows.

    Args:
        model: changed in place.
        subgraphs: whether values within subgraphs get theirs too.
    """
    inference = _Inference(model)
    inference.visit_graph(model.graph, subgraphs=subgraphs)


@contextlib.contextmanager
def inferred(model: ir.Model) -> Iterator[None]:
    """Let values have their types and shapes for a while; see `infer`, subgraphs included.

    Afterwards a value that declared none has none again, and one that did has what it declared,
    unless another type has been written to it meanwhile.
    """
    before = [(value, value.type, value.shape) for value in _values(model.graph)]
    infer(model, subgraphs=True)
    made = [(value.type, value.shape) for value, _, _ in before]
    try:
        yield
    finally:
        for (value, kind, shape), (known, _) in zip(before, made, strict=True):
            if value.type == known or kind is None:
                value.type = kind
            value.shape = shape


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph.all_nodes():
        yield from node.outputs


class _Inference:
    def __init__(self, model: ir.Model) -> None:
        self._opsets = model.opset_imports
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
        self._types: dict[str, onnx.TypeProto] = {}
        self._data: dict[str, onnx.TensorProto] = {}
        for value in model.graph.inputs:
            self._know(value)
        for value in model.graph.initializers.values():
            self._know_constant(value)

    def visit_graph(self, graph: ir.Graph, *, subgraphs: bool) -> None:
        """Infer the types of a graph's nodes, in order."""
        for node in graph:
            self.visit(node)
            for inner in find_subgraphs(node) if subgraphs else ():
                for value in inner.inputs:
                    self._know(value)
                for value in inner.initializers.values():
                    self._know_constant(value)
                self.visit_graph(inner, subgraphs=True)

    def visit(self, node: ir.Node) -> None:
        """Infer the types of a node's outputs."""
        found = self._infer(node)
        for value in node.outputs:
            if not value.name:
                continue
            proto = found.get(value.name)
            if proto is not None and proto.WhichOneof("value") is not None:
                _apply(value, proto)
            if value.shape is None:
                self._apply_rank(node, value)
            self._know(value)
            if node.op_type == "Constant" and not node.domain:
                tensor = ir.convenience.get_const_tensor(value)
                if tensor is not None and tensor.size <= _DATA:
                    self._data[value.name] = _proto(tensor)

    def _infer(self, node: ir.Node) -> dict[str, onnx.TypeProto]:
        version = node.version or self._opsets.get(node.domain, 1)
        names = {value.name for value in node.inputs if value is not None and value.name}
        types = {name: self._types.get(name, _UNKNOWN) for name in names}
        if _has_graphs(node):
            types = {**self._types, **types}  # what subgraphs may read
        data = {name: self._data[name] for name in names if name in self._data}
        with contextlib.suppress(
            onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError
        ):
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
            proto = ir.serde.serialize_node(node)
            return onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=self._imports
            )
        return {}

    def _apply_rank(self, node: ir.Node, value: ir.Value) -> None:
        """Give a value its rank, where that follows from the length of a computed shape."""
        at = None if node.domain else _TARGET.get(node.op_type)
        target = node.inputs[at] if at is not None and at < len(node.inputs) else None
        if target is None or target.shape is None or len(target.shape) != 1:
            return
        rank = target.shape[0]
        given = node.inputs[0]
        if node.op_type == "Expand" and isinstance(rank, int):
            if given is None or given.shape is None:
                return
            rank = max(rank, len(given.shape))
        if isinstance(rank, int):
            value.shape = ir.Shape([None] * rank)

    def _know(self, value: ir.Value) -> None:
        if value.name and value.type is not None:
            proto = ir.serde.serialize_type(value.type)
            if value.shape is not None and isinstance(value.type, ir.TensorType):
                ir.serde.serialize_shape_into(proto, value.shape)
            self._types[value.name] = proto

    def _know_constant(self, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is None or not value.name:
            return
        shape = tuple(tensor.shape.numpy())
        self._types[value.name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), shape)
        if tensor.size <= (_DATA if tensor.dtype in _INTEGERS else _SCALES):
            self._data[value.name] = _proto(tensor)


def _proto(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    # A copy: the tensor may lie in a file, which a proto would only refer to.
    return ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype))


def _has_graphs(node: ir.Node) -> bool:
    return next(find_subgraphs(node), None) is not None


def _apply(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Write an inferred type; dimensions below 0 are unknown."""
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    kind = ir.serde.deserialize_type_proto_for_type(proto)
    if kind is not None and not (isinstance(kind, ir.TensorType) and kind.dtype == 0):
        value.type = kind
    if shape is not None:
        value.shape = ir.Shape(
            [None if isinstance(dim, int) and dim < 0 else _dim(dim) for dim in shape]
        )


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value
