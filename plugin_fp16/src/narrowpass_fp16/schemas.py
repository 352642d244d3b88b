"""Which inputs and outputs of a node have one type, and which types those may be: from ONNX.

Also which values of a subgraph or function are those of the node around it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_ir.subgraphs import subgraphs

FLOAT = ir.DataType.FLOAT
"""The wide type."""


@dataclass(frozen=True)
class Slot:
    """An input or output of a node.

    Attributes:
        value: what is there.
        index: its place among the inputs, or outputs.
        output: whether it is an output.
        parameter: names the type that it has in common with others of the node; empty where its
            type is fixed, or cannot be the narrow one.
    """

    value: ir.Value
    index: int
    output: bool
    parameter: str


def slots(node: ir.Node, version: int, dtype: ir.DataType) -> Iterator[Slot] | None:
    """Yield the inputs and outputs of a node; None where nothing is known of its operator.

    Args:
        node: of any operator.
        version: of its operator set.
        dtype: the narrow type.
    """
    schema = _schema(node.op_type, version, node.domain)
    if schema is None or node.domain:
        return None
    return _slots(node, schema, f"tensor({dtype.name.lower()})")


_FIXED = {
    ("BitCast", "T1"),
    ("BitCast", "T2"),
    ("CastLike", "T1"),
    ("CastLike", "T2"),
    ("EyeLike", "T1"),
    ("EyeLike", "T2"),
    ("GroupNormalization", "U"),
    ("LayerNormalization", "U"),
    ("LinearAttention", "S"),
    ("LinearAttention", "T"),
    ("OneHot", "T1"),
    ("OneHot", "T2"),
    ("OptionalGetElement", "O"),
    ("OptionalGetElement", "V"),
}
"""Types that follow from an attribute or another input, and those of indices and sizes."""

_SAME = {("RMSNormalization", "V"): "T"}
"""Types that ONNX's inference and evaluator take to be one, though the schema has two."""

_SAYS_TYPE = {"dtype", "output_datatype", "output_dtype", "to"}
"""Attributes that say the type of a result."""

_CHANGED = {"Cast"}
"""Operators whose attribute is changed with the type of the result."""


def _slots(node: ir.Node, schema: onnx.defs.OpSchema, narrow: str) -> Iterator[Slot]:
    # What a sequence holds has its type, which no cast changes.
    holds = any(_is_container(formal) for formal in (*schema.inputs, *schema.outputs))
    says = not _SAYS_TYPE.isdisjoint(schema.attributes) and node.op_type not in _CHANGED
    read = {formal.type_str for formal in schema.inputs}
    written = {formal.type_str for formal in schema.outputs}
    for values, formals, output in (
        (node.inputs, schema.inputs, False),
        (node.outputs, schema.outputs, True),
    ):
        for index, value in enumerate(values):
            if value is None or not formals:
                continue
            formal = formals[min(index, len(formals) - 1)]
            parameter = formal.type_str if narrow in formal.types and not holds else ""
            if parameter.startswith("tensor(") or (node.op_type, parameter) in _FIXED:
                parameter = ""
            if says and parameter not in read & written:
                parameter = ""  # the result is of the type that the attribute says, or follows
            parameter = _SAME.get((node.op_type, parameter), parameter)
            variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
            if parameter and variadic and not formal.is_homogeneous:
                parameter = f"{parameter}#{index}{'>' if output else '<'}"
            yield Slot(value, index, output, parameter)


def _is_container(formal: onnx.defs.OpSchema.FormalParameter) -> bool:
    return all(kind.startswith(("seq(", "optional(")) for kind in formal.types)


@functools.lru_cache(maxsize=4096)
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(maxsize=4096)
def _first_version(op_type: str, domain: str, narrow: str) -> int:
    for version in range(1, onnx.defs.onnx_opset_version() + 1):
        schema = _schema(op_type, version, domain)
        formals = () if schema is None else (*schema.inputs, *schema.outputs)
        if any(narrow in formal.types for formal in formals):
            return version
    return 0


def first_version(node: ir.Node, dtype: ir.DataType) -> int:
    """Return the first operator set in which an operator has the narrow type; 0 where none has."""
    return _first_version(node.op_type, node.domain, f"tensor({dtype.name.lower()})")


def can_hold(node: ir.Node, version: int, dtype: ir.DataType) -> bool:
    """Return whether the results of a node of control flow may be of a type."""
    schema = _schema(node.op_type, version, node.domain)
    narrow = f"tensor({dtype.name.lower()})"
    return schema is not None and any(narrow in formal.types for formal in schema.outputs)


def accumulator_attribute(node: ir.Node, version: int) -> str:
    """Name the attribute that sets the type of a node's accumulators; empty where it has none."""
    schema = _schema(node.op_type, version, node.domain)
    names = () if schema is None else ("stash_type", "softmax_precision")
    return next((name for name in names if schema and name in schema.attributes), "")


def is_float(value: ir.Value) -> bool:
    """Return whether a value is known to be a tensor of float32."""
    if value.dtype is None and value.const_value is not None:
        return bool(value.const_value.dtype == FLOAT)
    return value.dtype == FLOAT and isinstance(value.type, ir.TensorType)


def borders(model: ir.Model, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield what goes where at the borders of subgraphs and functions: from, to."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        yield from _pairs(node.inputs, function.inputs)
        yield from _pairs(function.outputs, node.outputs)
    elif not node.domain and node.op_type == "If":
        for graph in subgraphs(node):
            yield from _pairs(graph.outputs, node.outputs)
    elif not node.domain and node.op_type == "Loop":
        for body in subgraphs(node):
            yield from _pairs(node.inputs[2:], body.inputs[2:])
            yield from _pairs(body.outputs[1:], body.inputs[2:])
            yield from _pairs(body.outputs[1:], node.outputs)
            yield from _pairs(node.inputs[2:], node.outputs)
    elif not node.domain and node.op_type == "Scan":
        for body in subgraphs(node):
            states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            yield from _pairs(node.inputs, body.inputs)
            yield from _pairs(body.outputs[:states], body.inputs[:states])
            yield from _pairs(body.outputs, node.outputs)


def _pairs(
    sources: Iterable[ir.Value | None], targets: Iterable[ir.Value]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    for source, target in zip(sources, targets, strict=False):
        if source is not None:
            yield source, target
