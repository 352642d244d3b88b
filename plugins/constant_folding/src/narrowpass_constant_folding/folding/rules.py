"""Nodes that are never folded, whatever their inputs; functions and subgraphs are followed."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of
from narrowpass_constant_folding.graphs.matching import Schema, schema_of
from narrowpass_constant_folding.graphs.scopes import inner_nodes
from narrowpass_constant_folding.report import Refusal
from narrowpass_ir.subgraphs import subgraphs

_QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FIRST_TRAINING_MODE_INPUT = 12
_FIRST_DROPOUT_WITHOUT_TRAINING = 7
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class Rules:
    """Judges nodes of one model."""

    def __init__(self, model: ir.Model, kept: Collection[ir.Node]) -> None:
        """Take the model and the nodes that the caller wants kept."""
        self._functions = model.functions
        self._kept = kept
        self._bodies: dict[ir.OperatorIdentifier, Refusal | None] = {}

    def refuse(self, node: ir.Node, opsets: Mapping[str, int]) -> Refusal | None:
        """Return why `node` must not be folded, or None where it may be.

        Args:
            node: a node whose inputs are constants.
            opsets: the operator-set versions that it is read with.
        """
        if _upcasts_half(node):
            return Refusal("upcast", "a 16-bit constant is stored so on purpose")
        if node.op_identifier() in self._functions and (node.domain == "" or node.overload):
            return Refusal(
                "function", "a function that stands for a standard operator, or overloads"
            )
        if any(
            attribute.is_ref()
            for inner in (node, *inner_nodes(node))
            for attribute in inner.attributes.values()
        ):
            return Refusal("function", "an attribute is given by the function's caller")
        return self._within(node, opsets)

    def _within(self, node: ir.Node, opsets: Mapping[str, int]) -> Refusal | None:
        refusal = self.refuse_node(node, opsets)
        if refusal:
            return refusal
        for graph in subgraphs(node):
            for inner in graph:
                refusal = self._within(inner, opsets)
                if refusal:
                    return refusal
        return None

    def refuse_node(self, node: ir.Node, opsets: Mapping[str, int]) -> Refusal | None:
        """Return what there is against the node itself, graphs within it left aside."""
        if node in self._kept:
            return Refusal("keep", f"the option keep selects {node.name or node.op_type!r}")
        key = node.op_identifier()
        if key in self._functions:
            return self._function(key)
        if node.op_type in _QUANTIZATION:
            return Refusal("quantization", f"{node.op_type} of a constant says how it is stored")
        version = opsets.get(node.domain, 0)
        schema = schema_of(node.domain, node.op_type, version)
        if schema is None:
            return Refusal(
                "schema", f"no schema of {node.domain or 'ai.onnx'}.{node.op_type} at {version}"
            )
        if node.op_type == "Dropout":
            return _dropout(node, version)
        return self._determinism(node, schema)

    def _function(self, key: ir.OperatorIdentifier) -> Refusal | None:
        if key not in self._bodies:
            self._bodies[key] = Refusal("function", "it calls itself")
            function = self._functions[key]
            self._bodies[key] = self._first_refusal(function, function.opset_imports)
        return self._bodies[key]

    def _first_refusal(self, function: ir.Function, opsets: Mapping[str, int]) -> Refusal | None:
        found = (self._within(node, opsets) for node in function)
        return next((refusal for refusal in found if refusal), None)

    def _determinism(self, node: ir.Node, schema: Schema) -> Refusal | None:
        verdict = onnx.defs.OpSchema.NodeDeterminism
        if schema.node_determinism == verdict.Deterministic:
            return None
        # The schemas count whatever has a subgraph as random; what is in it decides.
        if next(subgraphs(node), None) is not None:
            return None
        body = _schema_body(schema) or _typed_body(schema, node)
        if body is None:
            return Refusal("determinism", f"{node.op_type} returns another result each time")
        return self._first_refusal(body, body.opset_imports)


def _upcasts_half(node: ir.Node) -> bool:
    if node.domain or node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
        return False
    if node.op_type == "Cast":
        target = node.attributes["to"]
        wide = not target.is_ref() and target.as_int() == ir.DataType.FLOAT
    else:
        wide = node.inputs[1] is not None and node.inputs[1].dtype == ir.DataType.FLOAT
    tensor = constant_of(node.inputs[0])
    return wide and tensor is not None and tensor.dtype in _HALVES


def _dropout(node: ir.Node, version: int) -> Refusal | None:
    if version >= _FIRST_TRAINING_MODE_INPUT:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        if mode is None:
            return None
        tensor = constant_of(mode)
        trains = tensor is None or bool(tensor.numpy().any())
    elif version >= _FIRST_DROPOUT_WITHOUT_TRAINING:
        trains = False
    else:
        is_test = node.attributes.get("is_test")
        trains = is_test is None or is_test.is_ref() or is_test.as_int() == 0
    return Refusal("determinism", "Dropout in training is random") if trains else None


def _schema_body(schema: Schema) -> ir.Function | None:
    return _body(schema.domain, schema.name, schema.since_version) if schema.has_function else None


@functools.lru_cache(maxsize=256)
def _body(domain: str, name: str, version: int) -> ir.Function:
    schema = onnx.defs.get_schema(name, version, domain)
    return ir.serde.deserialize_function(schema.function_body)


def _typed_body(schema: Schema, node: ir.Node) -> ir.Function | None:
    """Return the body of a function that depends on its input types, where those are known."""
    if not schema.has_context_dependent_function:
        return None
    types = []
    for value in node.inputs:
        if value is None:
            types.append(b"")
            continue
        if value.type is None:
            return None
        types.append(ir.serde.serialize_type(value.type).SerializeToString())
    proto = onnx.FunctionProto()
    proto.ParseFromString(
        schema.get_context_dependent_function(
            ir.serde.serialize_node(node).SerializeToString(), types
        )
    )
    return ir.serde.deserialize_function(proto)
