"""Types and ranks of a graph's values, node by node, with ONNX's own inference.

Node by node, because invalid results can be dropped between nodes, before onnx reads them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

import onnx
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inferred_types import apply_row_shapes, apply_type, infer_node_types
from narrowpass_ir.subgraphs import subgraphs as find_subgraphs

_DATA = 1024
"""Elements up to which a constant is given to the inference: shapes, axes, pads."""

_SCALES = 16
"""The same for floats: the scales of a Resize, and not biases, which shapes do not follow from."""

_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.BOOL}
_UNKNOWN = onnx.TypeProto()

_FIRST_RESULT = {"If": 0, "Loop": 1, "Scan": 0}
"""Which output of the body is the first result of the node."""

_ALIKE = {"GreaterOrEqual": "Greater", "LessOrEqual": "Less"}
"""Operators whose first versions ONNX infers no shape of, and others of the same results."""

_LIKE_INPUT = {"GroupNormalization", "MeanVarianceNormalization"}
"""Operators whose output is like their input, which ONNX does not infer."""

_TARGET = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose output has as many dimensions as the input of this index has elements."""

READS_TYPES = frozenset({"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch"})
"""Operators that onnx is asked about only when the types of their operands are known: a model that
has one is inferred node by node, which takes three to twenty times as long as all at once."""

KNOWN_SHAPE = "narrowpass.known_shape"
"""In `ir.Value.meta`: the dimensions of a value, for those that inference does not find."""

Replace = Callable[[ir.Node], "Sequence[ir.Node] | None"]
"""Replaces a node whose inputs have types by others, and returns them; None to leave it."""


def infer(model: ir.Model, *, subgraphs: bool = False, replace: Replace | None = None) -> None:
    """Set the types and shapes of the main graph's values, as far as they follow, in place.

    What the model declares of a value between nodes counts where nothing follows.

    Args:
        model: changed in place.
        subgraphs: whether values within subgraphs and functions get theirs too; those in a function
            have what all its calls have in common.
        replace: asked for each node that is reached, functions aside, when all is known of its
            inputs; what it puts in the node's place is visited instead.
    """
    functions = _Functions(model)
    inference = _Inference(model.opset_imports, functions, replace)
    inference.add_known_types(model.graph)
    inference.visit_graph(model.graph, subgraphs=subgraphs)
    if subgraphs:
        functions.merge_call_types()


@contextlib.contextmanager
def inferred(model: ir.Model) -> Iterator[None]:
    """Let values have types and shapes for a while; see `infer`, subgraphs and functions included.

    Afterwards a value that declared none has none again, and one that did has what it declared,
    unless another type has been written to it meanwhile. A value that took the place of an output
    of the model has the shape that the output declared.
    """
    outputs = [(value, value.shape) for value in model.graph.outputs]
    values = [*_values(model.graph)]
    for function in model.functions.values():
        values += [*function.inputs, *_values(function.graph)]
    before = [(value, value.type, value.shape) for value in values]
    infer(model, subgraphs=True)
    inferred = [(value.type, value.shape) for value, _, _ in before]
    try:
        yield
    finally:
        for (value, kind, shape), (known, _) in zip(before, inferred, strict=True):
            if value.type == known or kind is None:
                value.type = kind
            value.shape = shape
        for value, (replaced, shape) in zip(model.graph.outputs, outputs, strict=False):
            if value is not replaced:
                value.shape = shape


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph.all_nodes():
        yield from node.outputs


class _Functions:
    """The functions of a model, and what their inputs have in common in all calls."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._given: dict[ir.OperatorIdentifier, list[onnx.TypeProto]] = {}
        self._within: list[ir.OperatorIdentifier] = []

    def find(self, node: ir.Node) -> ir.Function | None:
        """Return the function that a node calls; None for an operator or a circular call."""
        key = node.op_identifier()
        return None if key in self._within else self._functions.get(key)

    def call(
        self, function: ir.Function, types: Sequence[onnx.TypeProto]
    ) -> list[tuple[ir.TypeProtocol | None, ir.Shape | None]]:
        """Return the types and shapes of a call's results, and remember those of its inputs."""
        key = function.identifier()
        known = self._given.get(key)
        self._given[key] = (
            list(types)
            if known is None
            else [_merge_types(a, b) for a, b in zip_longest(known, types, fillvalue=_UNKNOWN)]
        )
        return self._visit(function, types)

    def merge_call_types(self) -> None:
        """Set the types within functions to what all calls have: callers before callees."""
        order: list[ir.OperatorIdentifier] = []

        def add(key: ir.OperatorIdentifier) -> None:
            if key in order:
                return
            for node in self._functions[key].all_nodes():
                if node.op_identifier() in self._functions and node.op_identifier() != key:
                    add(node.op_identifier())
            order.insert(0, key)

        for key in self._given:
            add(key)
        for key in order:
            self._visit(self._functions[key], self._given.get(key, []))

    def _visit(
        self, function: ir.Function, types: Sequence[onnx.TypeProto]
    ) -> list[tuple[ir.TypeProtocol | None, ir.Shape | None]]:
        self._within.append(function.identifier())
        for value in _values(function.graph):
            value.type = value.shape = None  # of another call
        for index, formal in enumerate(function.inputs):
            formal.type = formal.shape = None
            if index < len(types) and types[index].WhichOneof("value") is not None:
                apply_type(formal, types[index])
        inference = _Inference(function.opset_imports, self)
        inference.add_known_types(function.graph)
        inference.visit_graph(function.graph, subgraphs=True)
        self._within.pop()
        return [(value.type, value.shape) for value in function.outputs]


def _merge_types(a: onnx.TypeProto, b: onnx.TypeProto) -> onnx.TypeProto:
    """Return what two types have in common: nothing, if they are of different elements."""
    if a == b:
        return a
    kinds = [(t.WhichOneof("value"), t.tensor_type.elem_type) for t in (a, b)]
    if kinds[0] != kinds[1] or kinds[0][0] != "tensor_type":
        return _UNKNOWN
    common = onnx.helper.make_tensor_type_proto(a.tensor_type.elem_type, None)
    ranks = {len(t.tensor_type.shape.dim) for t in (a, b) if t.tensor_type.HasField("shape")}
    if len(ranks) == 1 and all(t.tensor_type.HasField("shape") for t in (a, b)):
        pairs = zip(a.tensor_type.shape.dim, b.tensor_type.shape.dim, strict=True)
        for x, y in pairs:
            dim = common.tensor_type.shape.dim.add()
            if x == y:
                dim.CopyFrom(x)
    return common


class _Inference:
    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: _Functions,
        replace: Replace | None = None,
    ) -> None:
        self._replace = replace
        self._opsets = opsets
        self._functions = functions
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
        self._types: dict[str, onnx.TypeProto] = {}
        self._data: dict[str, onnx.TensorProto] = {}

    def add_known_types(self, graph: ir.Graph) -> None:
        """Add the types of a graph's inputs and constants."""
        for value in graph.inputs:
            self._add_known_type(value)
        for value in graph.initializers.values():
            self._know_constant(value)

    def visit_graph(self, graph: ir.Graph, *, subgraphs: bool) -> None:
        """Infer the types of a graph's nodes, in order."""
        for node in self._nodes(graph):
            inner = list(find_subgraphs(node)) if subgraphs else []
            for body in inner:
                for value in body.inputs:
                    self._add_known_type(value)
                for value in body.initializers.values():
                    self._know_constant(value)
                self.visit_graph(body, subgraphs=True)
            self.visit(node)
            if inner and not node.domain and node.op_type in _FIRST_RESULT:
                self._copy_types_from_bodies(node, inner)

    def _nodes(self, graph: ir.Graph) -> Iterator[ir.Node]:
        """Yield the nodes of a graph, in order, those that take the place of others for them."""
        if self._replace is None:
            yield from graph
            return
        waiting, before = list(graph)[::-1], set(graph.initializers)
        while waiting:
            node = waiting.pop()
            replacement = self._replace(node)
            if replacement is None:
                yield node
                continue
            for name in graph.initializers.keys() - before:
                self._know_constant(graph.initializers[name])
                before.add(name)
            waiting += reversed(replacement)

    def _copy_types_from_bodies(self, node: ir.Node, bodies: Sequence[ir.Graph]) -> None:
        """Set the element types of control flow's results to those in the bodies.

        ONNX's inference does not see the types that function bodies imply.
        """
        first = _FIRST_RESULT[node.op_type]
        for index, value in enumerate(node.outputs):
            kinds = [body.outputs[first + index].type for body in bodies]
            if value.type is None and value.name and kinds and kinds.count(kinds[0]) == len(kinds):
                value.type = kinds[0]
                self._add_known_type(value)

    def visit(self, node: ir.Node) -> None:
        """Infer the types of a node's outputs."""
        function = self._functions.find(node)
        if function is not None:
            self._visit_call(node, function)
            return
        found = self._infer(node)
        for value in node.outputs:
            if not value.name:
                continue
            proto = found.get(value.name)
            if proto is not None and proto.WhichOneof("value") is not None:
                apply_type(value, proto)
            _apply_known(value)
            self._apply_rank(node, value)
            apply_row_shapes(node, value)
            self._add_known_type(value)
            if node.op_type == "Constant" and not node.domain:
                tensor = constant_tensor(value)
                if tensor is not None and tensor.size <= _DATA:
                    self._data[value.name] = _proto(tensor)

    def _visit_call(self, node: ir.Node, function: ir.Function) -> None:
        types = [
            _UNKNOWN if value is None else self._types.get(value.name or "", _UNKNOWN)
            for value in node.inputs
        ]
        found = self._functions.call(function, types)
        for value, (kind, shape) in zip(node.outputs, found, strict=False):
            if kind is not None and value.name:
                value.type, value.shape = kind, shape or value.shape
            self._add_known_type(value)

    def _infer(self, node: ir.Node) -> dict[str, onnx.TypeProto]:
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return {}  # what follows from the call
        version = node.version or self._opsets.get(node.domain, 1)
        names = {value.name for value in node.inputs if value is not None and value.name}
        types = {name: self._types.get(name, _UNKNOWN) for name in names}
        if _has_graphs(node):
            types = {**self._types, **types}  # what subgraphs may read
        if node.op_type in _LIKE_INPUT and not node.domain and node.inputs[0] is not None:
            kind = types.get(node.inputs[0].name or "", _UNKNOWN)
            return {node.outputs[0].name or "": kind}
        data = {name: self._data[name] for name in names if name in self._data}
        with contextlib.suppress(
            onnx.defs.SchemaError,
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,  # of an operator that the set deprecates
            ValueError,
        ):
            proto = ir.serde.serialize_node(node)
            if not node.domain:
                proto.op_type = _ALIKE.get(node.op_type, node.op_type)
                if node.op_type == "Squeeze":
                    _sort_axes(proto)
            schema = onnx.defs.get_schema(proto.op_type, version, node.domain)
            return infer_node_types(schema, proto, types, data, self._imports)
        return {}

    def _apply_rank(self, node: ir.Node, value: ir.Value) -> None:
        """Set a value's rank, where that follows from the length of a computed shape.

        A declaration of another rank is wrong: exporters write such of outputs.
        """
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
        if isinstance(rank, int) and (value.shape is None or len(value.shape) != rank):
            value.shape = ir.Shape([None] * rank)

    def _add_known_type(self, value: ir.Value) -> None:
        if value.name and value.type is not None:
            proto = ir.serde.serialize_type(value.type)
            if value.shape is not None and isinstance(value.type, ir.TensorType):
                ir.serde.serialize_shape_into(proto, value.shape)
            self._types[value.name] = proto
        elif value.name:
            # Nothing of another value of that name, as in the other branch.
            self._types.pop(value.name, None)
            self._data.pop(value.name, None)

    def _know_constant(self, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is None or not value.name:
            return
        shape = tuple(tensor.shape.numpy())
        self._types[value.name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), shape)
        if tensor.dtype == ir.DataType.STRING:
            return  # no shape follows from texts
        if tensor.size <= (_DATA if tensor.dtype in _INTEGERS else _SCALES):
            self._data[value.name] = _proto(tensor)


def _proto(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    # A copy: the tensor may lie in a file, which a proto would only refer to.
    return ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype))


def _sort_axes(squeeze: onnx.NodeProto) -> None:
    """Sort axes: ONNX's inference for the first version skips those that are not in order."""
    for attribute in squeeze.attribute:
        if attribute.name == "axes":
            attribute.ints[:] = sorted(attribute.ints)


def _has_graphs(node: ir.Node) -> bool:
    return next(find_subgraphs(node), None) is not None


def _apply_known(value: ir.Value) -> None:
    known = value.meta.get(KNOWN_SHAPE)
    if known is None:
        return
    found = value.shape if value.shape is not None else [None] * len(known)
    if len(found) == len(known):
        pairs = zip(found, known, strict=True)
        value.shape = ir.Shape(
            [a if isinstance(a, int) or getattr(a, "value", None) else b for a, b in pairs]
        )
