"""Builds encoders such as BERT from their configuration and their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_decoders.emitter import Emitter, activation, as_output, norm, typed
from narrowpass_decoders.weights import Weights
from narrowpass_ir.errors import ModelError

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes and the form of an encoder.

    Attributes:
        width: of the residual stream.
        layers: number of layers.
        heads: of attention; `width` is a multiple.
        epsilon: of all norms.
        activation: of the feed-forward part; one of `ACTIVATIONS`.
        padding: the token that fills rows up, where positions count the others and begin behind
            its number, as in RoBERTa; None where positions are 0, 1, 2 and so on.
    """

    width: int
    layers: int
    heads: int
    epsilon: float
    activation: str = "gelu"
    padding: int | None = None


def build_encoder(config: EncoderConfig, weights: Weights) -> ir.Model:
    """Return the method of an encoder.

    It reads ``input_ids`` and ``attention_mask``, int64 [B, S], and ``token_type_ids`` where there
    is such a table, and returns ``last_hidden_state``, float32 [B, S, W], and ``pooler_output``,
    [B, W], where there is a pooler. Of the mask, 0 hides a token from all others.

    Weights are asked for by these names: ``embedding``, ``positions``, ``types``, ``norm``,
    ``pooler``; and of layer I: ``I.q``, ``I.k``, ``I.v``, ``I.o``, ``I.norm1``, ``I.up``,
    ``I.down``, ``I.norm2``; ``NAME.bias`` where there is such a weight.

    Raises:
        ModelError: heads that do not fit the width, or a weight that is missing.
    """
    if config.heads < 1 or config.width % config.heads:
        raise ModelError(f"{config.heads} heads do not divide a width of {config.width}")
    e = Emitter(weights)
    dims = ("batch", "sequence")
    ids, mask = typed("input_ids", INT64, *dims), typed("attention_mask", INT64, *dims)
    inputs = [ids, mask]
    x = e.gather(ids, "embedding")
    if weights.has("types"):
        types = typed("token_type_ids", INT64, *dims)
        inputs.append(types)
        x = e.op("Add", x, e.gather(types, "types"))
    x = e.op("Add", x, e.gather(_positions(e, ids, config.padding), "positions"))
    x = _norm(e, x, "norm", config)
    hidden = _hidden(e, mask)
    for layer in range(config.layers):
        x = _layer(e, x, hidden, layer, config)
    outputs = [as_output(x, "last_hidden_state", FLOAT, *dims, config.width)]
    if weights.has("pooler"):
        first = e.op("Gather", x, e.const(0), axis=1)
        pooled = e.op("Tanh", e.linear(first, "pooler"))
        outputs.append(as_output(pooled, "pooler_output", FLOAT, "batch", config.width))
    return e.model("encoder", inputs, outputs)


def _positions(e: Emitter, ids: ir.Value, padding: int | None) -> ir.Value:
    """Return positions, [S], or [B, S] where padding does not count."""
    if padding is None:
        rows = e.op("Squeeze", e.op("Shape", ids, start=1, end=2), e.const([0]))
        return e.op("Range", e.const(0), rows, e.const(1))
    token = e.op("Cast", e.op("Not", e.op("Equal", ids, e.const(padding))), to=int(INT64))
    counted = e.op("Mul", e.op("CumSum", token, e.const(1)), token)
    return e.op("Add", counted, e.const(padding))


def _hidden(e: Emitter, mask: ir.Value) -> ir.Value:
    """Return what is added to scores, [B, 1, 1, S]."""
    seen = e.op("Cast", e.op("Unsqueeze", mask, e.const([1, 2])), to=int(ir.DataType.BOOL))
    lowest = float(np.finfo(np.float32).min)  # not infinite: a row may be hidden as a whole
    return e.op("Where", seen, e.number(0.0), e.number(lowest))


def _norm(e: Emitter, x: ir.Value, name: str, config: EncoderConfig) -> ir.Value:
    return norm(e, x, name, kind="layer", epsilon=config.epsilon)


def _layer(
    e: Emitter, x: ir.Value, hidden: ir.Value, layer: int, config: EncoderConfig
) -> ir.Value:
    head = config.width // config.heads
    shape = e.const([0, 0, config.heads, head])

    def heads(part: str, *perm: int) -> ir.Value:
        value = e.op("Reshape", e.linear(x, f"{layer}.{part}"), shape)
        return e.op("Transpose", value, perm=list(perm))

    scores = e.op("MatMul", heads("q", 0, 2, 1, 3), heads("k", 0, 2, 3, 1))
    scores = e.op("Add", e.op("Mul", scores, e.number(head**-0.5)), hidden)
    found = e.op("MatMul", e.op("Softmax", scores, axis=-1), heads("v", 0, 2, 1, 3))
    found = e.op("Transpose", found, perm=[0, 2, 1, 3])
    found = e.linear(e.op("Reshape", found, e.const([0, 0, config.width])), f"{layer}.o")
    x = _norm(e, e.op("Add", x, found), f"{layer}.norm1", config)
    inner = activation(e, e.linear(x, f"{layer}.up"), config.activation)
    return _norm(e, e.op("Add", x, e.linear(inner, f"{layer}.down")), f"{layer}.norm2", config)
