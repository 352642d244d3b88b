"""Every place of a model that holds nodes or tensors, as protobuf and as IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

Container = ir.Graph | ir.Function
ProtoContainer = onnx.GraphProto | onnx.FunctionProto


def containers(model: ir.Model) -> Iterator[tuple[str, Container]]:
    """Yield the graph, the functions and all subgraphs, each after the one it stands in.

    The text before each is its scope: empty for the main graph; for a subgraph the scope
    around it, the first output of its node and the attribute; for a function its identifier.
    It is unique in a model, and the same for the same model.
    """
    yield from _descend("", model.graph)
    for (domain, name, overload), function in model.functions.items():
        yield from _descend(f"{domain}::{name}:{overload}/", function)


def _descend(scope: str, container: Container) -> Iterator[tuple[str, Container]]:
    yield scope, container
    for index, node in enumerate(container):
        for attribute in node.attributes.values():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            if attribute.is_ref():
                continue
            label = next((out.name for out in node.outputs if out.name), f"#{index}")
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _descend(f"{scope}{label}.{attribute.name}/", attribute.as_graph())
                continue
            for position, graph in enumerate(attribute.as_graphs()):
                yield from _descend(f"{scope}{label}.{attribute.name}[{position}]/", graph)


def initializers(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """Yield every initializer of the graph and of all subgraphs, with its scope."""
    for scope, container in containers(model):
        if isinstance(container, ir.Graph):
            for value in container.initializers.values():
                yield scope, value


def proto_containers(proto: onnx.ModelProto) -> Iterator[ProtoContainer]:
    """Yield the graph, the functions and all subgraphs of a protobuf model."""
    yield from _descend_proto(proto.graph)
    for function in proto.functions:
        yield from _descend_proto(function)


def _descend_proto(container: ProtoContainer) -> Iterator[ProtoContainer]:
    yield container
    for node in container.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _descend_proto(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for graph in attribute.graphs:
                    yield from _descend_proto(graph)


def proto_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield every tensor of a protobuf model with what messages call it."""
    for container in proto_containers(proto):
        if isinstance(container, onnx.GraphProto):
            for tensor in container.initializer:
                yield f"initializer {tensor.name!r}", tensor
        for node in container.node:
            yield from _attribute_tensors(node.attribute, node)
        if isinstance(container, onnx.FunctionProto):
            yield from _attribute_tensors(container.attribute_proto, container)


def _attribute_tensors(
    attributes: Iterable[onnx.AttributeProto], owner: onnx.NodeProto | onnx.FunctionProto
) -> Iterator[tuple[str, onnx.TensorProto]]:
    for attribute in attributes:
        if attribute.ref_attr_name:
            continue  # the value comes from the call
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield f"attribute {attribute.name!r} of {describe(owner)}", attribute.t
        elif attribute.type == onnx.AttributeProto.TENSORS:
            for tensor in attribute.tensors:
                yield f"attribute {attribute.name!r} of {describe(owner)}", tensor


def describe(owner: onnx.NodeProto | onnx.FunctionProto) -> str:
    """Name a node or function in a message."""
    if isinstance(owner, onnx.FunctionProto):
        return f"function '{owner.domain}::{owner.name}'"
    if owner.name:
        return f"node {owner.name!r} ({owner.op_type})"
    outputs = ", ".join(name for name in owner.output if name)
    return f"the {owner.op_type} node that computes {outputs!r}"
