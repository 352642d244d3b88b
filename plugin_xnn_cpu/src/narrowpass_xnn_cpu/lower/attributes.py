"""Attributes of operators, checked against the operator's schema before a rule reads them."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from narrowpass.errors import AttributesError
from narrowpass_xnn_cpu.lower.op import Op


@functools.cache
def _types(kind: str, version: int, domain: str) -> dict[str, ir.AttributeType]:
    """Return the types of an operator's attributes by name; empty without a schema."""
    try:
        schema = onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return {}
    types = {name: str(a.type).rpartition(".")[2] for name, a in schema.attributes.items()}
    return {name: ir.AttributeType[kind] for name, kind in types.items()}


def check_attributes(op: Op) -> None:
    """Check that the attributes of an operator are of the types that its schema has.

    Raises:
        AttributesError: one is not; the message names it.
    """
    for node in op.nodes:
        known = _types(node.op_type, node.version or op.version, node.domain)
        for name, attribute in node.attributes.items():
            expected = known.get(name, attribute.type)
            if not attribute.is_ref() and attribute.type != expected:
                raise AttributesError(
                    f"its attribute {name!r} is of type {attribute.type.name}, not {expected.name}"
                )
