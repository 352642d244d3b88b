"""Classes of operators: elementwise, data movement, and those that are not quantized."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.movement import DATA_MOVEMENT, computes, data_operands

FLOAT = ir.DataType.FLOAT

UNARY = frozenset(
    {
        "Abs",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Elementwise operators of one tensor; the bounds of Clip are constants."""

BINARY = frozenset(
    {
        "Add",
        "Div",
        "Max",
        "Min",
        "Mul",
        "PRelu",
        "Pow",
        "Sub",
    }
)
"""Elementwise operators of two operands: one is a scalar, or both follow from the same element."""

WIDE_RANGE = frozenset(
    {
        "Exp",
        "Log",
        "Pow",
        "Reciprocal",
        "Sqrt",
    }
)
"""Operators whose results have a dynamic range that 256 levels do not cover."""

FUSED_ACTIVATIONS = frozenset({"Clip", "Relu"})
"""Activations that are fused into the operator before them."""

INT8_BINARY = frozenset(
    {
        "Add",
        "Mul",
        "Sub",
    }
)

AVERAGES = frozenset(
    {
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
    }
)

NOT_QUANTIZED = {
    "BatchNormalization": "fold merges it into the convolution before it, where that is possible",
    "Div": "quotients of two computed operands are not quantized",
    "Einsum": "it is not quantized",
    "GRU": "recurrent cells are not quantized",
    "GroupNormalization": "normalizations lose most in int8",
    "InstanceNormalization": "normalizations lose most in int8",
    "LSTM": "recurrent cells are not quantized",
    "LayerNormalization": "normalizations lose most in int8",
    "LpNormalization": "normalizations lose most in int8",
    "LpPool": "it is not quantized",
    "Max": "maxima of two computed operands are not quantized",
    "Min": "minima of two computed operands are not quantized",
    "PRelu": "its slope differs from channel to channel",
    "Pow": "powers of two computed operands are not quantized",
    "RMSNormalization": "normalizations lose most in int8",
    "RNN": "recurrent cells are not quantized",
    "ReduceMax": "it is not quantized",
    "ReduceSum": "it is not quantized",
    "Where": "it is not quantized",
}
"""Operators that some runtimes have in int8, and why they stay float here."""


def is_float(value: ir.Value | None) -> bool:
    """Return whether a value is known to be a tensor of float32."""
    return value is not None and value.dtype == FLOAT


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a constant that is no graph input, which could override it."""
    return value is not None and constant_tensor(value) is not None and not value.is_graph_input()


def is_scalar(value: ir.Value | None, beside: ir.Value | None = None) -> bool:
    """Return whether a value is a constant scalar that does not extend the rank of `beside`."""
    tensor = constant_tensor(value)
    if value is None or tensor is None or value.is_graph_input() or tensor.size != 1:
        return False
    rank = len(tensor.shape)
    shape = None if beside is None else beside.shape
    return rank <= (1 if shape is None else len(shape))


def pointwise_operands(node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Return the computed operands of an elementwise node; None for other nodes.

    Constants are left out: each is a scalar. With two operands the node is pointwise only if both
    follow from the same element, which the caller checks.
    """
    if node.domain or len(node.outputs) != 1 or not is_float(node.outputs[0]):
        return None
    if node.op_type in UNARY:
        first = node.inputs[0] if node.inputs else None
        rest = [value for value in node.inputs[1:] if value is not None]
        if first is None or not is_float(first) or is_constant(first):
            return None
        return (first,) if all(is_constant(value) for value in rest) else None
    if node.op_type not in BINARY or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None:
        return None
    computed = tuple(value for value in (a, b) if not is_constant(value))
    if not computed or not all(is_float(value) for value in computed):
        return None
    if len(computed) == 1:
        number = b if computed[0] is a else a
        return computed if is_scalar(number, computed[0]) else None
    return computed


def data_movement_operands(node: ir.Node) -> tuple[ir.Value, ...] | str | None:
    """Return the data operands of a data movement operator, constants included.

    Returns:
        None for other operators; a reason where it also computes.
    """
    if node.domain or node.op_type not in DATA_MOVEMENT or not is_float(node.outputs[0]):
        return None
    operands = data_operands(node)
    if not operands or not all(is_float(value) for value in operands):
        return None
    if all(is_constant(value) for value in operands):
        return "it moves constants"
    return computes(node) or operands


def is_activation(node: ir.Node) -> bool:
    """Return whether a node is a Relu or a Clip with constant bounds."""
    return node.op_type in FUSED_ACTIVATIONS and pointwise_operands(node) is not None


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, once; None where there are others."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader: ir.Node = uses[0].node
    return reader
