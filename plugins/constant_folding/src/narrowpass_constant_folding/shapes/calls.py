"""Result types of calls of model-local functions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.shapes.types import UNKNOWN, Type, from_proto, to_proto, type_of


class Calls:
    """Infers the types of calls with ONNX's inference of function bodies.

    What a body declares of values within it does not count.
    """

    def __init__(self, model: ir.Model) -> None:
        """Take the model for its functions."""
        self._functions = model.functions
        self._bodies: dict[ir.OperatorIdentifier, onnx.FunctionProto] = {}
        self._known: dict[object, Sequence[Type]] = {}

    def has(self, node: ir.Node) -> bool:
        """Whether a node calls one of the functions."""
        return node.op_identifier() in self._functions

    def infer(self, node: ir.Node) -> Sequence[Type]:
        """Return a type for each result of a call; none where ONNX's inference does not know."""
        types = [UNKNOWN if value is None else type_of(value) for value in node.inputs]
        if any(type_.dtype is None and not type_.other for type_ in types):
            return ()
        attributes = [attribute for attribute in node.attributes.values() if not attribute.is_ref()]
        if len(attributes) < len(node.attributes):
            return ()
        body = self._body(node.op_identifier())
        if len(types) < len(body.input):
            return ()
        given = [ir.serde.serialize_attribute(attribute) for attribute in attributes]
        names = {attribute.name for attribute in given}
        given += [default for default in body.attribute_proto if default.name not in names]
        texts = tuple(attribute.SerializeToString(deterministic=True) for attribute in given)
        key = node.op_identifier(), tuple(types), texts
        if key not in self._known:
            self._known[key] = _infer(body, types, given)
        return self._known[key]

    def _body(self, key: ir.OperatorIdentifier) -> onnx.FunctionProto:
        if key not in self._bodies:
            body = ir.serde.serialize_function(self._functions[key], create_value_info=False)
            del body.value_info[:]
            self._bodies[key] = body
        return self._bodies[key]


def _infer(
    body: onnx.FunctionProto, types: Sequence[Type], attributes: Sequence[onnx.AttributeProto]
) -> Sequence[Type]:
    protos = [to_proto(type_) for type_ in types]
    try:
        found = onnx.shape_inference.infer_function_output_types(body, protos, attributes)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return ()  # such as a body that calls another function
    return [from_proto(proto) for proto in found]
