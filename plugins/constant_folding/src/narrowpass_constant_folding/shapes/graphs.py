"""Types and shapes of all values of a graph, of the graphs within its nodes, and of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute
from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_constant_folding.report import Refusal, Report
from narrowpass_constant_folding.shapes.operators import InferenceError, Operators
from narrowpass_constant_folding.shapes.types import (
    UNKNOWN,
    Type,
    common,
    from_proto,
    merge,
    to_proto,
    type_of,
)
from narrowpass_constant_folding.shapes.values import ShapeValues
from narrowpass_ir.subgraphs import subgraphs

_FIRST_SCAN_WITHOUT_BATCH = 9

Hints = Mapping[ir.Value, Type]
"""What a file declares of values: reported where it contradicts, and an element type for those
of operators that nothing is known of."""


class GraphInference:
    """Infers the types of a model's values from those that its values have now."""

    def __init__(self, model: ir.Model, report: Report, hints: Hints, *, outputs: bool) -> None:
        """Take the model.

        Args:
            model: whose values get types and shapes.
            report: records invalid nodes, contradictions, and the number of changed values.
            hints: what the file declares of values.
            outputs: whether outputs of the model's graph get types, too.
        """
        self._main = model.graph
        self._calls = Calls(model)
        self._report = report
        self._hints = hints
        self._outputs = outputs
        self._operators = Operators(ShapeValues())

    def infer(self, model: ir.Model) -> None:
        """Infer the types of all values of the model and of its functions."""
        for root in roots(model):
            self.visit(root.graph, root.opsets)

    def visit(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        """Infer the types of all outputs of the graph's nodes, in order."""
        for node in graph:
            try:
                types = self._results(node, opsets)
            except InferenceError as failure:
                self._report.record_refusal(node, Refusal("inference", str(failure), "failed"))
                types = ()
            for value, type_ in zip(node.outputs, types, strict=False):
                self._refine(node, value, type_)
            for value in node.outputs:
                self._apply_declared_dtype(value)

    def _results(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Type]:
        if self._calls.has(node):
            return self._calls.infer(node)
        if not node.attributes or next(subgraphs(node), None) is None:
            return self._operators.infer(node, opsets)
        if node.domain:
            return ()
        match node.op_type:
            case "If":
                return self._if(node, opsets)
            case "Loop":
                return self._loop(node, opsets)
            case "Scan" if opsets.get("", 0) >= _FIRST_SCAN_WITHOUT_BATCH:
                return self._scan(node, opsets)
        for graph in subgraphs(node):
            self.visit(graph, opsets)
        return ()

    def _if(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Type]:
        branches = list(subgraphs(node))
        for branch in branches:
            self.visit(branch, opsets)
        outputs = [[type_of(value) for value in b.outputs] for b in branches]
        return [common(*pair) for pair in zip(*outputs, strict=False)] if len(outputs) == 2 else ()

    def _loop(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Type]:
        (body,) = subgraphs(node)
        carried = [
            UNKNOWN if value is None else _without_dims(type_of(value)) for value in node.inputs[2:]
        ]
        given = [Type(ir.DataType.INT64, ()), Type(ir.DataType.BOOL, ()), *carried]
        self._enter(node, body, given, opsets)
        scanned = [_stacked(type_of(value), 0, None) for value in body.outputs[1 + len(carried) :]]
        return [*carried, *scanned]

    def _scan(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Type]:
        (body,) = subgraphs(node)
        scans = attribute(node, "num_scan_inputs", 0)
        states = len(node.inputs) - scans
        types = [UNKNOWN if value is None else type_of(value) for value in node.inputs]
        axes = attribute(node, "scan_input_axes", (0,) * scans)
        slices = [_unstacked(*pair) for pair in zip(types[states:], axes, strict=False)]
        self._enter(node, body, [*types[:states], *slices], opsets)
        results = [type_of(value) for value in body.outputs]
        length = _dim(types[-1], axes[-1]) if scans and len(axes) == scans else None
        out_axes = attribute(node, "scan_output_axes", (0,) * (len(results) - states))
        stacked = [
            _stacked(type_, axis, length)
            for type_, axis in zip(results[states:], out_axes, strict=False)
        ]
        return [*types[:states], *stacked]

    def _enter(
        self, node: ir.Node, body: ir.Graph, given: Sequence[Type], opsets: Mapping[str, int]
    ) -> None:
        for value, type_ in zip(body.inputs, given, strict=False):
            self._refine(node, value, type_)
        self.visit(body, opsets)

    def _refine(self, node: ir.Node, value: ir.Value, inferred: Type) -> None:
        if inferred == UNKNOWN:
            return
        declared = type_of(value)
        merged = merge(declared, inferred)
        contradiction = merge(self._hints.get(value, declared), inferred).contradiction
        if contradiction:
            reason = f"{value.name!r}: {contradiction}"
            self._report.record_refusal(node, Refusal("declared", reason, "contradictions"))
        of_model = value.is_graph_output() and value.graph is self._main
        if merged.type == declared or (of_model and not self._outputs):
            return
        declare(value, declared, merged.type)
        self._report.count("inferred")

    def _apply_declared_dtype(self, value: ir.Value) -> None:
        """Let the declared element type of what nothing is known of count.

        A shape counts nowhere: exporters, and editors of models, leave wrong ones in files, and
        runtimes go on with a warning. A wrong element type is refused by them.
        """
        hint = self._hints.get(value)
        if hint is not None and hint.dtype is not None and type_of(value) == UNKNOWN:
            declare(value, UNKNOWN, Type(hint.dtype))


def declare(value: ir.Value, old: Type, new: Type) -> None:
    """Write a type to a value that has another; what the old one says of axes is kept."""
    if new.other:
        proto = onnx.TypeProto.FromString(new.other)
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
        return
    if new.dtype is not None and new.dtype != old.dtype:
        value.type = ir.TensorType(new.dtype)
    if new.dims is not None and new.dims != old.dims:
        known = value.shape
        denotations = (
            None if known is None else [known.get_denotation(i) for i in range(len(known))]
        )
        value.shape = ir.Shape(new.dims, denotations)


def _without_dims(type_: Type) -> Type:
    return Type(type_.dtype, None, type_.other)


def _stacked(type_: Type, axis: int, length: int | str | None) -> Type:
    """Return the type of results of that type put together along a new axis.

    Names of dimensions are left out: inside, one may mean another size in each iteration.
    """
    if type_.other or type_.dims is None:
        return _without_dims(type_)
    dims = [dim if isinstance(dim, int) else None for dim in type_.dims]
    place = axis if axis >= 0 else axis + len(dims) + 1
    return Type(type_.dtype, (*dims[:place], length, *dims[place:]))


def _unstacked(type_: Type, axis: int) -> Type:
    if type_.other or not type_.dims:
        return _without_dims(type_)
    place = axis % len(type_.dims)
    return Type(type_.dtype, type_.dims[:place] + type_.dims[place + 1 :])


def _dim(type_: Type, axis: int) -> int | str | None:
    return type_.dims[axis % len(type_.dims)] if type_.dims else None


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
