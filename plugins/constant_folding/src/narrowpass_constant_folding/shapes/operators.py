"""Result types of one node: ONNX's own inference, and what it cannot do with partial shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of, small_array
from narrowpass_constant_folding.graphs.matching import is_op, schema_of
from narrowpass_constant_folding.shapes.partial import RULES, to_dim
from narrowpass_constant_folding.shapes.sizes import Element, broadcast, named
from narrowpass_constant_folding.shapes.types import (
    UNKNOWN,
    Dim,
    Dims,
    Type,
    from_proto,
    to_proto,
    type_of,
)
from narrowpass_constant_folding.shapes.values import ShapeValues
from narrowpass_ir.inferred_types import infer_node_types

Array = np.ndarray[Any, Any]

_CACHED = 4096
_REFUSALS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
)
_UNARY_NAMES = """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Identity LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu Round Selu Sigmoid
    Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
"""
_UNARY = frozenset(_UNARY_NAMES.split())
_ARITHMETIC = frozenset({"Add", "And", "Div", "Mod", "Mul", "Or", "Sub", "Xor"})
_INDEXING = frozenset({"Concat", "Gather", "Slice", "Squeeze", "Unsqueeze"})
_INDEX_DTYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


class InferenceError(Exception):
    """ONNX's inference found the node at fault; the message is what it said."""


class Operators:
    """Infers the types of nodes' outputs, remembering those of equal nodes."""

    def __init__(self, values: ShapeValues) -> None:
        """Take what knows the elements of shape operands."""
        self._values = values
        self._known: dict[object, tuple[Type, ...] | str] = {}

    def infer(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Type]:
        """Return what follows from the inputs' types: a type for each output.

        Raises:
            InferenceError: the node contradicts its operator's definition.
        """
        types = [UNKNOWN if value is None else type_of(value) for value in node.inputs]
        quick = _quick(node, types, opsets) or self._from_elements(node, types)
        if quick is not None:
            return [quick]
        found = list(self._by_schema(node, types, opsets))
        if is_op(node, *RULES):
            dims = RULES[node.op_type](self._values, node)
            if dims is not None:
                found[0] = Type(found[0].dtype, _better(found[0].dims, dims))
        return found

    def _from_elements(self, node: ir.Node, types: Sequence[Type]) -> Type | None:
        """Return the type of an index or shape whose elements are known."""
        if node.op_type not in _INDEXING or node.domain or types[0].dtype not in _INDEX_DTYPES:
            return None
        found = self._values.elements(node.outputs[0])
        if found is None:
            return None
        return Type(types[0].dtype, (len(found.items),) if found.rank else ())

    def _by_schema(
        self, node: ir.Node, types: Sequence[Type], opsets: Mapping[str, int]
    ) -> Sequence[Type]:
        version = opsets.get(node.domain, 0)
        schema = schema_of(node.domain, node.op_type, version)
        if schema is None:
            return [UNKNOWN] * len(node.outputs)
        data = self._data(node)
        names: dict[str, str] = {}
        key = (
            node.op_identifier(),
            version,
            _attributes_key(node),
            tuple(_renamed(type_, names) for type_ in types),
            tuple(value is None for value in node.inputs),
            tuple(bool(value.name) for value in node.outputs),
            tuple((index, array.dtype.str, array.shape, array.tobytes()) for index, array in data),
        )
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            found = self._known[key] = _run(node, schema, key[3], data, opsets)
        if isinstance(found, str):
            raise InferenceError(found)
        back = {new: old for old, new in names.items()}
        return [_restored(type_, back) for type_ in found]

    def _data(self, node: ir.Node) -> list[tuple[int, Array]]:
        """Return the operands that a shape may depend on: small constants, and known elements."""
        data = []
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            tensor = constant_of(value)
            if tensor is not None:
                # The first operand is mostly data, on which no shape depends.
                if index or node.op_type in ("ConstantOfShape", "Range"):
                    array = small_array(tensor)
                    if array is not None:
                        data.append((index, array))
                continue
            if not index and node.op_type not in ("ConstantOfShape", "Range"):
                continue
            if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                continue
            elements = self._values.elements(value)
            if elements is not None and elements.numbers is not None:
                array = np.array(elements.numbers, value.dtype.numpy())
                data.append((index, array.reshape(()) if elements.rank == 0 else array))
        return data


def _quick(node: ir.Node, types: Sequence[Type], opsets: Mapping[str, int]) -> Type | None:
    """Infer the most frequent operators at little expense; None for all others."""
    if node.domain or len(node.outputs) != 1 or any(type_.other for type_ in types):
        return None
    if node.op_type in _UNARY and len(types) == 1:
        return types[0] if types[0].dtype is not None else None
    boolean = node.op_type in _COMPARISONS
    if not boolean and node.op_type not in _ARITHMETIC:
        return None
    if len(types) != 2 or opsets.get("", 0) < 7:
        return None
    left, right = types
    if left.dtype is None or left.dtype != right.dtype:
        return None
    dims = _broadcast(left.dims, right.dims)
    if dims is None:
        return None
    return Type(ir.DataType.BOOL if boolean else left.dtype, dims)


def _broadcast(left: Dims | None, right: Dims | None) -> Dims | None:
    if left is None or right is None:
        return None
    if left == right and None not in left:
        return left
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    dims = []
    for one, other in pairs:
        if (
            isinstance(one, int)
            and isinstance(other, int)
            and one != other
            and 1 not in (one, other)
        ):
            return None  # the node is at fault; ONNX's inference says so
        dims.append(to_dim(broadcast(_to_element(one), _to_element(other))))
    return tuple(dims)


def _run(
    node: ir.Node,
    schema: Any,
    types: Sequence[Type],
    data: Sequence[tuple[int, Array]],
    opsets: Mapping[str, int],
) -> tuple[Type, ...] | str:
    """Return a type for each output, or what ONNX's inference has against the node."""
    inputs = ["" if value is None else f"i{index}" for index, value in enumerate(node.inputs)]
    outputs = [f"o{index}" if value.name else "" for index, value in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=inputs, output=outputs)
    for attr in node.attributes.values():
        if attr.is_ref() or attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return (UNKNOWN,) * len(outputs)
        ir.serde.serialize_attribute_into(proto.attribute.add(), attr)
    given = {
        name: to_proto(type_)
        for name, type_ in zip(inputs, types, strict=True)
        if name and type_ != UNKNOWN and (type_.other or type_.dtype is not None)
    }
    if any(name and name not in given for name in inputs):
        # ONNX's inference is asked where the types of all inputs are known.
        return (UNKNOWN,) * len(outputs)
    tensors = {
        inputs[index]: onnx.numpy_helper.from_array(np.asarray(array, order="C"), inputs[index])
        for index, array in data
    }
    imports = [onnx.helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    try:
        found = infer_node_types(schema, proto, given, tensors, imports)
    except _REFUSALS as error:
        return " ".join(str(error).split())[:300]
    return tuple(from_proto(found[name]) if name in found else UNKNOWN for name in outputs)


def _attributes_key(node: ir.Node) -> object:
    if not node.attributes:
        return ()
    key = []
    for name, attr in sorted(node.attributes.items()):
        if attr.is_ref() or attr.type not in _PLAIN_ATTRIBUTES:
            return node  # equal only to itself
        value = attr.value
        key.append((name, attr.type, tuple(value) if isinstance(value, (list, tuple)) else value))
    return tuple(key)


_PLAIN_ATTRIBUTES = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
    }
)


def _renamed(type_: Type, names: dict[str, str]) -> Type:
    """Return dimensions' names by order of appearance, so that like nodes are equal."""
    if type_.dims is None or not any(isinstance(dim, str) for dim in type_.dims):
        return type_
    return Type(
        type_.dtype,
        tuple(
            names.setdefault(dim, f"d{len(names)}") if isinstance(dim, str) else dim
            for dim in type_.dims
        ),
    )


def _restored(type_: Type, back: Mapping[str, str]) -> Type:
    if type_.dims is None:
        return type_
    return Type(
        type_.dtype,
        tuple(back.get(dim) if isinstance(dim, str) else dim for dim in type_.dims),
        type_.other,
    )


def _to_element(dim: Dim) -> Element:
    return named(dim) if isinstance(dim, str) else dim


def _better(old: Dims | None, new: Dims) -> Dims:
    if old is None or len(old) != len(new):
        return new if old is None else old
    return tuple(
        known if isinstance(known, int) or other is None else other
        for known, other in zip(old, new, strict=True)
    )
