"""Requests to compute in narrow types where the pass stores no weight.

Rows of matmuls whose weights are integers before the pass, as importers of quantized files store
them, may be int8. Operands of matmuls of two computed values, as attention has, may be bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Decision
from narrowpass.framework.classify import ACTIVATIONS, matching_nodes
from narrowpass_int4.matrices import label_of
from narrowpass_ir.constants import constant_tensor

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


INT8_ROWS = 4
"""``accuracy_level`` of MatMulNBits for rows in int8."""

_INTEGERS = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)


def request_int8_rows(model: ir.Model, red: Sequence[str], ctx: Context) -> int:
    """Request rows in int8 of each matmul that reads constant integers and has no request yet.

    A MatMulNBits that asks for another accuracy keeps it, and a matmul whose rows are dequantized
    keeps the scales that they have.

    Args:
        model: changed.
        red: items that select nodes to leave alone.
        ctx: receives a decision for each node, and their count as ``rows``.

    Returns:
        How many nodes changed.
    """
    nodes = [node for node in model.graph.all_nodes() if _asks_nothing(node) and _integers_of(node)]
    kept = {node for found in matching_nodes(red, nodes).values() for node in found}
    nodes = [node for node in nodes if node not in kept]
    for node in nodes:
        if node.op_type == "MatMulNBits":
            node.attributes.add(ir.AttrInt64("accuracy_level", INT8_ROWS))
        else:
            node.metadata_props[ACTIVATIONS] = "dynamic"
        ctx.decisions.append(
            Decision(
                label_of(node),
                node.op_type,
                "rows in int8",
                "activations=dynamic",
                f"its weight is stored as {_integers_of(node)}",
            )
        )
    ctx.counters["rows"] += len(nodes)
    return len(nodes)


def _asks_nothing(node: ir.Node) -> bool:
    """Return whether a matmul leaves open how its rows, which are floats, are multiplied."""
    if node.op_type == "MatMulNBits":
        return node.attributes.get_int("accuracy_level", 0) == 0
    if node.domain or node.op_type not in ("MatMul", "Gemm") or ACTIVATIONS in node.metadata_props:
        return False
    rows = None if node.inputs[0] is None else node.inputs[0].producer()
    return rows is None or rows.op_type != "DequantizeLinear"


def _integers_of(node: ir.Node) -> str:
    """Return the type of the constant integers that a matmul reads; empty for others."""
    if node.op_type == "MatMulNBits":
        bits = node.attributes.get_int("bits", 4)
        return f"uint{bits}" if bits in (4, 8) and constant_tensor(node.inputs[1]) else ""
    weight = node.inputs[1]
    producer = None if weight is None else weight.producer()
    if producer is not None and producer.op_type == "Transpose":
        weight = producer.inputs[0]
        producer = None if weight is None else weight.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return ""
    tensor = constant_tensor(producer.inputs[0])
    known = tensor is not None and tensor.dtype in _INTEGERS and len(tensor.shape) == 2
    return tensor.dtype.name.lower() if tensor is not None and known else ""
