"""Pattern of int32 accumulators that are dequantized, as written for dynamic quantization."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.fusion.matching import Group, producer

_KINDS = {"MatMulInteger": "matmul-integer", "ConvInteger": "conv-integer"}


def match(cast: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match Cast(accumulators) · (activation scale · weight scale) + bias.

    The inputs of the group are those of the integer operator, the scale of the activations, that of
    the weights and the bias; None for what is not there.
    """
    node = producer(cast.inputs[0], *_KINDS)
    if node is None or facts.only_user(node.outputs[0]) is not cast:
        return None
    if facts.dtype(cast.outputs[0]) != ir.DataType.FLOAT:
        return None
    if node.op_type == "MatMulInteger" and not facts.is_constant(node.inputs[1]):
        return Group("computed-integers", [*node.inputs, None, None][:4], [node, cast])
    mul = facts.only_user(cast.outputs[0])
    if mul is None or mul.op_type != "Mul" or mul.domain or len(mul.inputs) != 2:
        return None
    others = [value for value in mul.inputs if value is not None and value is not cast.outputs[0]]
    scales = _scales(others[0], mul, facts) if len(others) == 1 else None
    if scales is None:
        return None
    given, weights, before = scales
    columns = _columns(node, facts)
    if weights is not None and not _fits(weights, node, columns, facts):
        return None
    nodes = [node, cast, *before, mul]
    bias = None
    add = facts.only_user(mul.outputs[0])
    if add is not None and add.op_type == "Add" and not add.domain and len(add.inputs) == 2:
        rest = [value for value in add.inputs if value is not None and value is not mul.outputs[0]]
        if len(rest) == 1 and _fits(rest[0], node, columns, facts):
            bias = rest[0]
            nodes.append(add)
    inputs = [*node.inputs, None, None][:4]
    attributes = {
        name: value.value for name, value in node.attributes.items() if not value.is_ref()
    }
    return Group(_KINDS[node.op_type], [*inputs, given, weights, bias], nodes, attributes)


def _scales(
    value: ir.Value, mul: ir.Node, facts: Facts
) -> tuple[ir.Value | None, ir.Value | None, list[ir.Node]] | None:
    """Return the activation scale, the constant weight scale, and the node that multiplies them."""
    if facts.is_constant(value):
        return None, value, []
    node = producer(value, "Mul")
    if node is not None and len(node.inputs) == 2:
        for given, weights in (node.inputs, tuple(reversed(node.inputs))):
            if given is None or not facts.is_constant(weights) or facts.is_constant(given):
                continue
            if not _is_scalar(given, facts):
                return None
            alone = facts.only_user(value) is mul
            return given, weights, [node] if alone else []
    return (value, None, []) if _is_scalar(value, facts) else None


def _is_scalar(value: ir.Value, facts: Facts) -> bool:
    return facts.dtype(value) == ir.DataType.FLOAT and facts.dims(value) in ((), (1,))


def _columns(node: ir.Node, facts: Facts) -> int | None:
    """Return the output channels of a constant weight."""
    dims = facts.dims(node.inputs[1]) if facts.is_constant(node.inputs[1]) else None
    if not dims:
        return None
    size = dims[-1] if node.op_type == "MatMulInteger" else dims[0]
    return size if isinstance(size, int) else None


def _fits(value: ir.Value, node: ir.Node, columns: int | None, facts: Facts) -> bool:
    """Return whether a constant is a scalar, or has one element for each output channel."""
    if not facts.is_constant(value) or facts.dtype(value) != ir.DataType.FLOAT:
        return False
    dims, rank = facts.dims(value), facts.rank(node.outputs[0])
    if dims is None or rank is None or len(dims) > rank:
        return False
    if all(size == 1 for size in dims):
        return True
    behind = 0 if node.op_type == "MatMulInteger" else rank - 2
    places = [1] * len(dims)
    if len(dims) <= behind or columns is None:
        return False
    places[len(dims) - 1 - behind] = columns
    return list(dims) == places
