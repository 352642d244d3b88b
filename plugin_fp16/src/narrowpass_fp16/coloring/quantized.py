"""Which nodes are part of int8: they compute with integers, or say how these are to be read.

Between DequantizeLinear and QuantizeLinear an operator is written with floats, but a backend runs
it on integers, and finds it by its form: a cast in between, or a scale of another type, would turn
it into a float operator with two conversions.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor

_CONVERSIONS = {
    "DequantizeLinear": "backends take its scale in float32 only",
    "DynamicQuantizeLinear": "what it quantizes is to be float32",
    "QLinearConv": "backends take its scales in float32 only",
    "QLinearMatMul": "backends take its scales in float32 only",
    "QuantizeLinear": "backends take its scale in float32 only",
}

_FUSED = {
    "Add",
    "Clip",
    "Elu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Mul",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Sub",
    "Tanh",
}
"""Operators that may stand between an int8 operator and the QuantizeLinear of its result: of one
computed operand, they are biases, factors and activations."""

_OPERANDS = {"Add", "Concat", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul", "Sub"}
"""Operators whose first two operands are numbers: a constant among them is in bytes, or it is no
int8 operator."""

_INT8 = "it is an int8 operator: it stands between DequantizeLinear and QuantizeLinear"


def quantized_nodes(nodes: Iterable[ir.Node]) -> dict[ir.Node, str]:
    """Return the nodes that must keep float32 for int8 to stay int8, and why.

    Args:
        nodes: all nodes of a model, with types as far as they are known.
    """
    found: dict[ir.Node, str] = {}
    for node in nodes:
        if node.domain:
            continue
        if node.op_type in _CONVERSIONS:
            found[node] = _CONVERSIONS[node.op_type]
        elif _reads_integers(node):
            chain = _up_to_quantize(node)
            found.update(dict.fromkeys(chain, _INT8))
    return found


def _reads_integers(node: ir.Node) -> bool:
    """Return whether all that a node computes with are integers behind DequantizeLinear."""
    computed = _computed(node)
    if node.op_type in _OPERANDS and len(_computed(node, 2)) < min(2, len(node.inputs)):
        return False
    return any(_is_produced_by(value, "DequantizeLinear") for value in computed) and all(
        _is_produced_by(value, "DequantizeLinear") or _is_integer(value) for value in computed
    )


def _up_to_quantize(node: ir.Node) -> list[ir.Node]:
    """Return a node and what is fused with it, up to QuantizeLinear; nothing where none follows."""
    chain = [node]
    while True:
        readers = [user for value in chain[-1].outputs for user, _ in value.uses()]
        if any(user.op_type == "QuantizeLinear" and not user.domain for user in readers):
            return chain
        if len(readers) != 1 or chain[-1].outputs[0].is_graph_output():
            return []
        (following,) = readers
        if following.domain or following.op_type not in _FUSED or len(_computed(following)) != 1:
            return []
        chain.append(following)


def _computed(node: ir.Node, most: int | None = None) -> list[ir.Value]:
    """Return the operands of a node that are no constants, of the first ones or of all."""
    operands = node.inputs[:most]
    return [value for value in operands if value is not None and constant_tensor(value) is None]


def _is_produced_by(value: ir.Value, op_type: str) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == op_type and not producer.domain


def _is_integer(value: ir.Value) -> bool:
    """Return whether a computed operand is a shape, an index, or the like."""
    return value.dtype is not None and not value.dtype.is_floating_point()
