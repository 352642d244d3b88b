"""The weights W and R of LSTM, GRU and RNN, which can be stored as int8."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_int8_sym.weighted_nodes import FLOAT, WeightedNode
from narrowpass_ir.constants import constant_tensor

RECURRENT = ("LSTM", "GRU", "RNN")
"""Recurrent operators: W multiplies inputs, R states; both are [directions, gates, K]."""

_WEIGHTS = ((1, "W"), (2, "R"))


def weights_of(node: ir.Node) -> list[WeightedNode] | str | None:
    """Return how the weights of a recurrent layer can be stored as int8.

    There is a scale for each row of the gates. Both directions share them: DequantizeLinear has
    scales along one axis only.

    Returns:
        W and R; None for other operators, and a reason for a layer whose weights cannot be.
    """
    if node.domain or node.op_type not in RECURRENT:
        return None
    found = []
    for index, name in _WEIGHTS:
        value = node.inputs[index] if len(node.inputs) > index else None
        tensor = constant_tensor(value)
        if value is None or tensor is None:
            return f"its weight {name} is computed"
        if value.is_graph_input():
            return f"its weight {value.name!r} may be fed; freeze-weights turns it into a constant"
        if tensor.dtype != FLOAT:
            return f"its weight {value.name!r} is {tensor.dtype.name.lower()}"
        dims = tuple(tensor.shape.numpy())
        if len(dims) != 3 or 0 in dims:
            return f"its weight {value.name!r} is {list(dims)}, and not [directions, gates, K]"
        found.append(WeightedNode(node, value, index, 1))
    return found
