"""Norms and activations, which decoders and encoders have."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from narrowpass_decoders.emitter import Emitter


def norm(
    e: Emitter, x: ir.Value, name: str, *, kind: str, epsilon: float, offset: float = 0.0
) -> ir.Value:
    """Emit a norm of the last axis.

    Args:
        e: emits the nodes.
        x: of any rank.
        name: of its scale; its bias is ``NAME.bias``, where there is one.
        kind: ``rms`` or ``layer``.
        epsilon: added to the mean of squares.
        offset: added to the scale.
    """
    scale = e.weights.vector(name)
    if offset:
        scale = ir.tensor(scale.numpy().astype(np.float32) + np.float32(offset), name=name)
    inputs = [x, e.initializer(name, scale)]
    bias = f"{name}.bias"
    if e.weights.has(bias):
        inputs.append(e.vector(bias))
    if kind == "layer":
        return e.op("LayerNormalization", *inputs, name=name, axis=-1, epsilon=epsilon)
    result = e.op("RMSNormalization", *inputs[:2], name=name, axis=-1, epsilon=epsilon)
    return e.op("Add", result, inputs[2], name=name) if len(inputs) == 3 else result


def activation(e: Emitter, x: ir.Value, kind: str) -> ir.Value:
    """Emit one of `narrowpass_decoders.config.ACTIVATIONS`."""
    if kind == "silu":
        return e.op("Mul", x, e.op("Sigmoid", x))
    if kind == "relu":
        return e.op("Relu", x)
    return e.op("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")


def cap(e: Emitter, x: ir.Value, limit: float) -> ir.Value:
    """Emit limit · tanh(x / limit); x itself where `limit` is 0."""
    if not limit or math.isinf(limit):
        return x
    number = e.number(limit)
    return e.op("Mul", e.op("Tanh", e.op("Div", x, number)), number)
