"""Recurrent operators with quantized weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_ir.constants import constant_tensor

_INPUTS = 8
"""Inputs of LSTM, which come before scales and zero points."""

_ATTRIBUTES = (
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
)


def dynamic_lstm(e: Emitter) -> Sequence[ir.Value]:
    """Emit DynamicQuantizeLSTM: an LSTM whose weights are DequantizeLinear of integers.

    The node bears the metadata `ACTIVATIONS`: a backend may quantize rows and states when it runs,
    as the operator does. Elsewhere they stay floats: results are nearer to those of the float
    model.

    Raises:
        Unsupported: weights, their scales or zero points are computed, or do not fit each other.
    """
    inputs = [e.input(index) for index in range(_INPUTS)]
    inputs[1] = _dequantized_weights(e, 1, "W", 8)
    inputs[2] = _dequantized_weights(e, 2, "R", 10)
    named = {name: e.get(name, None) for name in _ATTRIBUTES}
    results = e.ops("LSTM", *inputs, outputs=3, **named)
    output = results[0].producer()
    if output is not None:
        output.metadata_props[ACTIVATIONS] = "dynamic"
    return results


def _dequantized_weights(e: Emitter, index: int, name: str, scale_at: int) -> ir.Value:
    """Return a weight [directions, inputs, gates] as [directions, gates, inputs], dequantized.

    The integers are a matrix of the rows of all directions, each with a scale.
    """
    given = e.required(index, name), e.required(scale_at, f"{name}_scale")
    zero = e.required(scale_at + 1, f"{name}_zero_point")
    tensors = [
        None if value.is_graph_input() else constant_tensor(value) for value in (*given, zero)
    ]
    if any(tensor is None for tensor in tensors):
        raise Unsupported(f"its {name}, or its scale or zero point, is not constant")
    weight, scale, zeros = (tensor for tensor in tensors if tensor is not None)
    dims = tuple(weight.shape.numpy())
    if len(dims) != 3 or scale.size not in (dims[0], dims[0] * dims[2]):
        raise Unsupported(f"its {name} is {list(dims)}, with {scale.size} scales")
    if zeros.size != scale.size:
        raise Unsupported(f"its {name} has {scale.size} scales and {zeros.size} zero points")
    directions, columns, rows = dims
    shape = directions * rows, columns

    def integers() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(weight.numpy().transpose(0, 2, 1)).reshape(shape))

    lazy = ir.LazyTensor(integers, dtype=weight.dtype, shape=ir.Shape(shape), cache=True)
    each = shape[0] // scale.size
    factors = e.weight(f"{name}_scale", ir.tensor(np.repeat(scale.numpy().reshape(-1), each)))
    away = None
    if zeros.numpy().any():
        away = e.weight(f"{name}_zero", ir.tensor(np.repeat(zeros.numpy().reshape(-1), each)))
    matrix = e.op("DequantizeLinear", e.weight(name, lazy), factors, away, axis=0)
    return e.reshape(matrix, directions, rows, columns)
