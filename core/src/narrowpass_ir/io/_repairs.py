"""What exporters and converters write that programs cannot use, or leave open, in usual forms."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir

from narrowpass_ir.io._walk import proto_containers

_LOGGER = logging.getLogger("narrowpass")
_ML = "ai.onnx.ml"
_OPSET = 13
"""Of the Identity that takes the place of a ZipMap, in models that import no operators of ONNX."""

_PAST, _PRESENT = slice(3, 5), slice(1, 3)
"""Caches among the inputs and the outputs of GroupQueryAttention."""


def without_maps(proto: onnx.ModelProto, name: str) -> None:
    """Return scores of classes as the tensor that a ZipMap converts to maps, in place.

    A ZipMap whose result is an output of the model, and nothing else, becomes an Identity: the
    output keeps its name and is float32 [rows, classes]. A warning says so, and which class each
    column is of. Other maps are left for `refuse`.
    """
    outputs = {value.name: value for value in proto.graph.output}
    read = {value for node in proto.graph.node for value in node.input}
    for node in proto.graph.node:
        if (node.domain, node.op_type) != (_ML, "ZipMap") or len(node.output) != 1:
            continue
        value = outputs.get(node.output[0])
        if value is None or value.name in read:
            continue
        classes = [
            item.decode(errors="replace") if isinstance(item, bytes) else item
            for attribute in node.attribute
            for item in (*attribute.ints, *attribute.strings)
        ]
        _LOGGER.warning(
            "%s: output %r is a list of maps; it is given as a float32 tensor [rows, %d] in its "
            "place, with a column for each of the classes %s",
            name,
            value.name,
            len(classes),
            ", ".join(map(repr, classes[:20])) + (", ..." if len(classes) > 20 else ""),
        )
        kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None, len(classes)])
        value.type.CopyFrom(kind)
        node.domain, node.op_type = "", "Identity"
        del node.attribute[:]
        if all(opset.domain not in ("", "ai.onnx") for opset in proto.opset_import):
            # Converters of scikit-learn may import the operators of ai.onnx.ml alone.
            proto.opset_import.append(onnx.helper.make_opsetid("", _OPSET))


_NO_NAMES = {"?", "-1", "None"}


def forget_unknown_dimensions(proto: onnx.ModelProto) -> None:
    """Leave dimensions unknown for which exporters wrote -1 or ``?`` to say so.

    All dimensions of one name have one size, which these need not, and onnx's shape inference
    computes with a number whatever it is.
    """
    for container in proto_containers(proto):
        infos = [*container.value_info]
        if isinstance(container, onnx.GraphProto):
            infos += [*container.input, *container.output]
        for info in infos:
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0 or dim.dim_param in _NO_NAMES:
                    dim.Clear()


def size_caches(model: ir.Model) -> None:
    """Complete the shapes of caches of GroupQueryAttention by the heads and the size of a head.

    onnxruntime-genai's model builder leaves the last axis open and calls it ``kv_cache_dim``,
    though the attributes of the node and the shape of its rows determine it.

    A cache is an input of the graph, [batch, heads, rows, head size], and the result with the new
    rows an output. Sizes that a file states stay as they are.

    Args:
        model: as loaded, with the types that its file states; changed.
    """
    outputs = {id(value) for value in model.graph.outputs}
    for node in model.graph:
        if node.domain != "com.microsoft" or node.op_type != "GroupQueryAttention":
            continue
        heads = node.attributes.get_int("kv_num_heads", 0)
        size = _head_size(node, heads)
        if size is None:
            continue
        given = [value for value in node.inputs[_PAST] if value and value.is_graph_input()]
        for value in (*given, *(each for each in node.outputs[_PRESENT] if id(each) in outputs)):
            _complete(value, heads, size)


def _head_size(node: ir.Node, heads: int) -> int | None:
    """Return the size of a head: of the keys, or of a row with queries, keys and values."""
    query, key = node.inputs[:2]
    rows, parts = (
        (key, heads) if key else (query, node.attributes.get_int("num_heads", 0) + 2 * heads)
    )
    if rows is None or rows.shape is None or len(rows.shape) != 3 or parts < 1 or heads < 1:
        return None
    width = rows.shape[2]
    return width // parts if isinstance(width, int) and width % parts == 0 else None


def _complete(value: ir.Value, heads: int, size: int) -> None:
    if value.shape is None or len(value.shape) != 4:
        return
    batch, old_heads, rows, old_size = value.shape
    value.shape = ir.Shape(
        [
            batch,
            old_heads if isinstance(old_heads, int) else heads,
            rows,
            old_size if isinstance(old_size, int) else size,
        ]
    )
