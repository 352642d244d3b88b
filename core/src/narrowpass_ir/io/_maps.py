"""Outputs that are lists of maps, as converters of scikit-learn write them."""

from __future__ import annotations

import logging

import onnx

_LOGGER = logging.getLogger("narrowpass")
_ML = "ai.onnx.ml"
_OPSET = 13
"""Of the Identity that takes the place of a ZipMap, in models that import no operators of ONNX."""


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
