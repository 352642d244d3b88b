"""How large values are that large constants go into: masks, most of all.

A mask of -3.4e38 that is chosen by a Where, added, moved, or carried into a branch, is as large
there; a cast would turn it into infinity, and the softmax of a row that is masked altogether into
NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_fp16.schemas import accumulator_attribute, borders, is_float
from narrowpass_ir.constants import constant_tensor

_FORGET = {
    "Atan",
    "Attention",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Einsum",
    "Erf",
    "Exp",
    "GRU",
    "Gemm",
    "GroupNormalization",
    "HardSigmoid",
    "Hardmax",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "Log",
    "LpNormalization",
    "MatMul",
    "MeanVarianceNormalization",
    "RMSNormalization",
    "RNN",
    "Reciprocal",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softmax",
    "Softsign",
    "Tanh",
}
"""Operators whose results are bounded, or of unknown magnitude, as matmuls are. All others
may have the largest element of an operand in their results."""

_UNBOUNDED = 3.4e38
"""The largest float32, as a bound the same as none."""

_ROUNDS = 8
"""Of following values around loops and through calls."""


def magnitudes(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    largest_in: Callable[[ir.TensorProtocol], float],
) -> dict[ir.Value, float]:
    """Return the largest magnitude that constants bring into computed values.

    Args:
        model: has the functions.
        nodes: of the model, in order, those of subgraphs and functions included.
        largest_in: returns the largest finite magnitude in a constant of float32.

    Returns:
        Values with constants in them; a value is left out where there are none.
    """
    found: dict[ir.Value, float] = {}

    def of(value: ir.Value | None) -> float:
        if value is None:
            return 0.0
        tensor = constant_tensor(value)
        if tensor is None:
            return found.get(value, 0.0)
        if tensor.dtype == ir.DataType.FLOAT:
            return largest_in(tensor)
        return _largest_of_double(tensor) if tensor.dtype == ir.DataType.DOUBLE else 0.0

    for _ in range(_ROUNDS):
        changed = False
        for node in nodes:
            flows = [(of(source), value) for source, value in borders(model, node)]
            if not flows and not node.domain:
                most = _result(node, of)
                flows = [(most, value) for value in node.outputs]
            for most, value in flows:
                if most > found.get(value, 0.0):
                    found[value] = most
                    changed = True
        if not changed:
            break
    return {value: most for value, most in found.items() if is_float(value)}


def _result(node: ir.Node, of: Callable[[ir.Value | None], float]) -> float:
    """Return the largest magnitude in the results of an operator."""
    kind = node.op_type
    if kind in _FORGET:
        return 0.0
    if kind == "ConstantOfShape":
        value = node.attributes.get("value")
        return 0.0 if value is None else float(np.abs(value.as_tensor().numpy()).max())
    given = [of(value) for value in node.inputs]
    constant = [constant_tensor(value) is not None for value in node.inputs]
    if kind == "Mul" and len(given) == 2 and any(constant) and all(given):
        # Of a computed value only what constants brought is known: alone it says nothing.
        return given[0] * given[1]
    if kind == "Div":
        return given[0]
    if kind == "Sub" and len(given) == 2 and given[0] == given[1]:
        return 0.0  # what was added is taken away again
    if kind == "Clip" and len(given) == 3 and all(constant[1:]):
        return max(given[1:])
    return max(given, default=0.0)


def _largest_of_double(tensor: ir.TensorProtocol) -> float:
    array = np.abs(tensor.numpy())
    return float(array[np.isfinite(array)].max(initial=0))


def number_beyond(
    node: ir.Node, version: int, smallest: float, largest: float
) -> tuple[str, float, float] | None:
    """Return an attribute whose number a narrow type cannot hold, the number, and the limit.

    Normalizations that say what they compute in take their numbers so.
    """
    if accumulator_attribute(node, version):
        return None
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or attribute.type != ir.AttributeType.FLOAT:
            continue
        number = abs(attribute.as_float())
        if largest < number < _UNBOUNDED:
            return name, number, largest
        if 0 < number < smallest:
            return name, number, smallest
    return None
