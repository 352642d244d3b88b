"""Matmuls of two computed operands, as attention has, whose operands may be rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Decision
from narrowpass.framework.classify import ACTIVATIONS, matching_nodes
from narrowpass_int4.matrices import label_of

if TYPE_CHECKING:
    from narrowpass import Context

ROUNDED = "bfloat16"
"""The value of `ACTIVATIONS` that lets a backend round both operands."""

_ATTENTION = {
    ("", "Attention"),
    ("com.microsoft", "Attention"),
    ("com.microsoft", "GroupQueryAttention"),
    ("com.microsoft", "MultiHeadAttention"),
}


def request_rounded_attention(model: ir.Model, red: Sequence[str], ctx: Context) -> int:
    """Let backends round the operands of matmuls without weights, and of attention, to bfloat16.

    Rows that matmuls before them round to int8 have lost more.

    Args:
        model: changed.
        red: items that select nodes to leave alone.
        ctx: receives a decision for each node, and their count as ``rounded``.

    Returns:
        How many nodes changed.
    """
    nodes = [node for node in _without_weights(model) if ACTIVATIONS not in node.metadata_props]
    kept = {node for found in matching_nodes(red, nodes).values() for node in found}
    nodes = [node for node in nodes if node not in kept]
    for node in nodes:
        node.metadata_props[ACTIVATIONS] = ROUNDED
        ctx.decisions.append(
            Decision(
                label_of(node),
                node.op_type,
                "operands in bfloat16",
                "activations=dynamic",
                "all of its operands are computed",
            )
        )
    ctx.counters["rounded"] += len(nodes)
    return len(nodes)


def _without_weights(model: ir.Model) -> Iterator[ir.Node]:
    """Yield attention, and matmuls of which neither operand follows from constants alone."""
    computed = {value for value in model.graph.inputs if value.const_value is None}
    for node in model.graph.all_nodes():
        bodies = [value.as_graph() for value in node.attributes.values() if _is_graph(value)]
        for body in bodies:
            computed.update(body.inputs)
        if bodies or any(value in computed for value in node.inputs if value is not None):
            computed.update(node.outputs)
        if (node.domain, node.op_type) in _ATTENTION or (
            not node.domain and node.op_type == "MatMul" and computed.issuperset(node.inputs)
        ):
            yield node


def _is_graph(attribute: ir.Attr) -> bool:
    return attribute.type == ir.AttributeType.GRAPH
