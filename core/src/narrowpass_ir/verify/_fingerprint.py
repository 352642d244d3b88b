"""A cheap hash that shows whether a model object changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

_CONTENT_BELOW = 1024
"""Tensors of fewer bytes are compared by content, larger ones by identity."""

_QUANTIZATION = "quant_parameter_tensor_names"
"""The one entry of `Value.meta` that a file holds."""

Part = Any
"""Nested tuples of strings, numbers and None, whose `repr` is one-to-one."""


def fingerprint(model: ir.Model) -> str:
    """Return a hash of a model that changes if, and only if, what a file would hold changes.

    Large weights are not read: a tensor of 1 KiB or more counts as changed when it is another
    object, or has another name, type or shape. So the hash is good for comparisons within one
    process, while the tensors of both models are alive, not for storing.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _model_parts(model):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()


def _model_parts(model: ir.Model) -> Iterator[Part]:
    yield (
        "model",
        model.ir_version,
        model.producer_name,
        model.producer_version,
        model.domain,
        model.model_version,
        model.doc_string or "",
        _sorted(model.metadata_props),
        repr(getattr(model, "device_configurations", ())),
    )
    yield from _graph_parts(model.graph)
    for key, function in model.functions.items():
        yield ("function", key, function.identifier())
        for name, attribute in function.attributes.items():
            yield from _attribute_parts(name, attribute)
        yield from _graph_parts(function.graph)


def _graph_parts(graph: ir.Graph) -> Iterator[Part]:
    yield (
        "graph",
        graph.name,
        graph.doc_string or "",
        _sorted(graph.opset_imports),
        _sorted(graph.metadata_props),
    )
    for value in graph.inputs:
        yield ("input", _value(value))
    for key, value in graph.initializers.items():
        yield ("initializer", key, _value(value), _tensor(value.const_value))
    for node in graph:
        yield (
            node.domain,
            node.op_type,
            node.overload,
            node.name,
            node.doc_string or "",
            _sorted(node.metadata_props),
            tuple(None if value is None else value.name for value in node.inputs),
            tuple(map(_value, node.outputs)),
            repr(getattr(node, "device_configurations", ())),
        )
        for name, attribute in node.attributes.data.items():
            yield from _attribute_parts(name, attribute)
    # Their order, and that they are outputs: their types are parts of inputs and nodes.
    yield ("outputs", tuple(map(_value, graph.outputs)))


def _attribute_parts(key: str, attribute: ir.Attr) -> Iterator[Part]:
    kind = attribute.type.name
    yield (
        "attribute",
        key,
        attribute.name,
        kind,
        attribute.ref_attr_name,
        attribute.doc_string or "",
    )
    value = attribute.value
    if value is None:
        yield None
    elif attribute.type == ir.AttributeType.GRAPH:
        yield from _graph_parts(value)
    elif attribute.type == ir.AttributeType.GRAPHS:
        for graph in value:
            yield from _graph_parts(graph)
    elif attribute.type == ir.AttributeType.TENSOR:
        yield _tensor(value)
    elif attribute.type == ir.AttributeType.TENSORS:
        yield tuple(map(_tensor, value))
    else:
        yield _plain(value)


def _plain(value: Any) -> Part:
    """Return an attribute's value, where it is neither graph nor tensor."""
    if isinstance(value, ir.TypeAndShape):
        return (repr(value.type), _shape(value.shape))
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if isinstance(value, int | float | str | bytes):
        return value
    return (type(value).__name__, id(value))


def _value(value: ir.Value) -> Part:
    kind = value.type
    return (
        value.name,
        None if kind is None else (repr(kind), kind.denotation),
        _shape(value.shape),
        value.doc_string or "",
        _sorted(value.metadata_props),
        _sorted(value.meta.get(_QUANTIZATION) or {}),
    )


def _shape(shape: ir.Shape | None) -> Part:
    if shape is None:
        return None
    dims = tuple(dim if isinstance(dim, int) else ("?", dim.value) for dim in shape)
    return dims, tuple(map(shape.get_denotation, range(len(dims))))


def _tensor(tensor: ir.TensorProtocol | None) -> Part:
    if tensor is None:
        return None
    described = (
        tensor.name,
        int(tensor.dtype),
        tuple(tensor.shape),
        tensor.doc_string or "",
        _sorted(tensor.metadata_props),
    )
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes >= _CONTENT_BELOW:
        return described, id(tensor)
    return described, tensor.tobytes()


def _sorted(entries: Mapping[str, Any]) -> Part:
    return tuple(sorted(entries.items())) if entries else ()
