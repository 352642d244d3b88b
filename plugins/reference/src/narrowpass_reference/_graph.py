"""From nodes of the IR to an evaluator that runs them, and from its results to declared types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_reference._evaluator import Evaluator, Value

Functions = Mapping[tuple[str, str, str], ir.Function]


def create_evaluator(
    nodes: Iterable[ir.Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
    functions: Functions,
) -> Evaluator:
    """Create an evaluator of `nodes`, which must stand in topological order.

    Initializers of their graph are not part of it: they are fed as arrays, without a copy.

    Raises:
        BackendError: a node that the reference evaluator cannot run.
    """
    graph = onnx.GraphProto(name="nodes")
    for name in inputs:
        graph.input.add().name = name
    for name in outputs:
        graph.output.add().name = name
    for node in nodes:
        proto = graph.node.add()
        ir.serde.serialize_node_into(proto, from_=node)
        _inline_external_tensors(node, proto)
    bodies = {key: ir.serde.serialize_function(body) for key, body in functions.items()}
    for key, body in functions.items():
        for node, proto in zip(body, bodies[key].node, strict=True):
            _inline_external_tensors(node, proto)
        bodies[key].name = _call_name(key)
    callees: list[Evaluator] = []
    for callee in _callees_first(graph.node, bodies):
        _adapt_calls(callee.node, bodies)
        callees.append(Evaluator(callee, functions=list(callees)))
    _adapt_calls(graph.node, bodies)
    return Evaluator(graph, opsets=dict(opsets), functions=list(callees))


def constant_array(value: ir.Value) -> Value:
    """Return an initializer as the array that the evaluator takes: a view where that can be.

    Raises:
        BackendError: an initializer without data.
    """
    tensor = value.const_value
    if tensor is None:
        raise BackendError(f"initializer {value.name!r} has no data")
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    texts = [_decoded(item) for item in tensor.numpy().ravel()]
    return np.array(texts, dtype=object).reshape(tensor.shape.numpy())


def _decoded(text: Any) -> Any:
    return text.decode() if isinstance(text, bytes) else text


def _inline_external_tensors(node: ir.Node, proto: onnx.NodeProto) -> None:
    """Bring in subgraph initializers that onnx-ir writes as references to files."""
    for attribute in proto.attribute:
        if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            continue
        value = node.attributes[attribute.name].value
        graphs = [value] if attribute.type == onnx.AttributeProto.GRAPH else value
        protos = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        for graph, graph_proto in zip(graphs, protos, strict=True):
            for tensor in graph_proto.initializer:
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    tensor.ClearField("data_location")
                    tensor.ClearField("external_data")
                    tensor.raw_data = graph.initializers[tensor.name].const_value.tobytes()
            for inner, inner_proto in zip(graph, graph_proto.node, strict=True):
                _inline_external_tensors(inner, inner_proto)


def _nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_within(graph.node)


def _key(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _call_name(key: tuple[str, str, str]) -> str:
    """Return the name that distinguishes overloads; the evaluator knows domain and name only."""
    _, name, overload = key
    return f"{name}:{overload}" if overload else name


def _callees_first(
    nodes: Iterable[onnx.NodeProto], bodies: Mapping[tuple[str, str, str], onnx.FunctionProto]
) -> list[onnx.FunctionProto]:
    """Return the functions that `nodes` need, each after those that it calls."""
    order: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    open_calls: list[tuple[str, str, str]] = []

    def visit(within: Iterable[onnx.NodeProto]) -> None:
        for key in dict.fromkeys(map(_key, _nodes_within(within))):
            if key not in bodies or key in order:
                continue
            if key in open_calls:
                raise BackendError(f"function {key[1]!r} of domain {key[0]!r} calls itself")
            open_calls.append(key)
            visit(bodies[key].node)
            order[open_calls.pop()] = bodies[key]

    visit(nodes)
    return list(order.values())


def _adapt_calls(
    nodes: Iterable[onnx.NodeProto],
    bodies: Mapping[tuple[str, str, str], onnx.FunctionProto],
) -> None:
    """Write out what the evaluator does not do for a call: attribute defaults and overloads."""
    if not bodies:
        return
    for node in _nodes_within(nodes):
        body = bodies.get(_key(node))
        if body is None:
            continue
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for a in body.attribute_proto if a.name not in given)
        node.op_type = _call_name(_key(node))
        node.ClearField("overload")


def conform(value: Value, kind: ir.TypeProtocol | None, name: str) -> Value:
    """Return `value` as its declared type says: the exact dtype, strings as object arrays.

    Raises:
        BackendError: a value whose type is another one altogether.
    """
    if isinstance(kind, ir.OptionalType):
        return None if value is None else conform(value, kind.elem_type, name)
    if isinstance(kind, ir.SequenceType):
        if not isinstance(value, list):
            raise BackendError(f"value {name!r} is declared a sequence; {_kind(value)} came out")
        return [conform(element, kind.elem_type, name) for element in value]
    if value is None:
        raise BackendError(f"value {name!r} is declared {kind}; nothing came out")
    if not isinstance(value, np.ndarray):
        return value
    return _conform_array(value, kind.dtype if isinstance(kind, ir.TensorType) else None, name)


def _conform_array(
    array: np.ndarray[Any, Any], dtype: ir.DataType | None, name: str
) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "USO":
        if dtype not in (None, ir.DataType.STRING):
            raise BackendError(f"value {name!r} is declared {dtype}; strings came out")
        return array.astype(object)
    if dtype in (None, ir.DataType.UNDEFINED) or array.dtype == dtype.numpy():
        return array
    actual = ir.DataType.from_numpy(array.dtype)
    alike = (actual.is_floating_point() and dtype.is_floating_point()) or (
        actual.is_integer() and dtype.is_integer()
    )
    if not alike:
        raise BackendError(f"value {name!r} is declared {dtype}; {actual} came out")
    return array.astype(dtype.numpy())


def fresh(value: Value) -> Value:
    """Copy a result, so that it shares memory with no feed, weight or other result."""
    if isinstance(value, list):
        return [fresh(element) for element in value]
    return value.copy(order="C") if isinstance(value, np.ndarray) else value


def _kind(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
