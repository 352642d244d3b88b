"""Attributes of operators, checked against the operator's schema before anything reads them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from narrowpass_ir.errors import SchemaError


def check_attributes(node: ir.Node, version: int | None = None) -> None:
    """Check that the attributes of a node are of the types that its operator's schema has.

    Called before code that reads attributes: a `TypeError` of that code is then a defect, and no
    property of the model.

    Args:
        node: of any operator; one without a schema is let through, and so are references to
            attributes of a function.
        version: of the operator set; None for the node's own, or its graph's.

    Raises:
        SchemaError: one is of another type; the message names it.
    """
    if version is None:
        version = node.version
    if version is None and node.graph is not None:
        version = node.graph.opset_imports.get(node.domain)
    known = _types(node.op_type, version or onnx.defs.onnx_opset_version(), node.domain)
    for name, attribute in node.attributes.items():
        expected = known.get(name, attribute.type)
        if not attribute.is_ref() and attribute.type != expected:
            raise SchemaError(
                f"its attribute {name!r} is of type {attribute.type.name}, not {expected.name}"
            )


@functools.cache
def _types(op_type: str, version: int, domain: str) -> Mapping[str, ir.AttributeType]:
    """Return the types of an operator's attributes by name; empty without a schema."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: ir.AttributeType[str(attribute.type).rpartition(".")[2]]
        for name, attribute in schema.attributes.items()
    }
