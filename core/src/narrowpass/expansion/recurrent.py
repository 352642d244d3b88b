"""Recurrent operators with quantized weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass.expansion.emitter import Emitter, Unsupported

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
    """Write DynamicQuantizeLSTM: an LSTM with the numbers that the weights stand for.

    Activations are not quantized: results are nearer to those of the float model, by what the
    operator's own rounding of them to 8 bits does.

    Raises:
        Unsupported: weights, their scales or zero points are computed, or do not fit each other.
    """
    inputs = [e.input(index) for index in range(_INPUTS)]
    inputs[1] = _numbers(e, 1, "W", 8)
    inputs[2] = _numbers(e, 2, "R", 10)
    named = {name: e.get(name, None) for name in _ATTRIBUTES}
    return e.ops("LSTM", *inputs, outputs=3, **named)


def _numbers(e: Emitter, index: int, name: str, scale_at: int) -> ir.Value:
    """Give a weight [directions, inputs, gates] as float32 [directions, gates, inputs]."""
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

    def numbers() -> ir.TensorProtocol:
        factors = scale.numpy().astype(np.float32).reshape(dims[0], 1, -1)
        away = zeros.numpy().astype(np.int32).reshape(dims[0], 1, -1)
        real = (weight.numpy().astype(np.int32) - away).astype(np.float32) * factors
        return ir.tensor(np.ascontiguousarray(real.transpose(0, 2, 1)))

    shape = ir.Shape([dims[0], dims[2], dims[1]])
    lazy = ir.LazyTensor(numbers, dtype=ir.DataType.FLOAT, shape=shape, cache=True)
    return e.weight(name, lazy)
