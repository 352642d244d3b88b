"""Builds the two methods of a decoder with KV caches from its configuration and its weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_decoders.config import Config, Rotary
from narrowpass_decoders.emitter import Emitter, activation, as_output, cap, norm, typed
from narrowpass_decoders.weights import CheckedWeights, Weights, decoder_shapes

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64

PREFILL, DECODE = "prefill", "decode"


def build_decoder(config: Config, weights: Weights) -> dict[str, ir.Model]:
    """Return the methods of a decoder.

    ``prefill`` reads ``input_ids``, int64 [1, S], and returns the ``logits`` of the last position,
    float32 [1, 1, V], and the caches ``present.I.key`` and ``present.I.value``, float32
    [1, G, S, D], of each layer I. ``decode`` reads ``past_key_values.I.key`` and
    ``past_key_values.I.value``, [1, G, P, D], too, and returns the logits of all positions,
    [1, S, V], and caches of P + S rows. Positions follow from the rows of the cache of layer 0.

    Weights are asked for by these names: ``embedding``, ``positions``, ``norm``, ``head``; and of
    layer I: ``I.norm1``, ``I.q``, ``I.k``, ``I.v``, ``I.q_norm``, ``I.k_norm``, ``I.o``,
    ``I.norm1.post``, ``I.norm2``, ``I.gate``, ``I.up``, ``I.down``, ``I.norm2.post``; ``NAME.bias``
    where there is such a weight.

    Raises:
        ModelError: a configuration that no decoder has, or a weight that is missing or of another
            shape.
    """
    config.check()
    weights = CheckedWeights(weights, decoder_shapes(config))
    return {
        name: _Decoder(config, weights, decode=name == DECODE).build() for name in (PREFILL, DECODE)
    }


class _Decoder:
    """One method."""

    def __init__(self, config: Config, weights: Weights, *, decode: bool) -> None:
        self._config, self._decode = config, decode
        self._e = Emitter(weights)
        self._ids = typed("input_ids", INT64, 1, "sequence")
        self._pasts = self._caches("past_key_values", "past") if decode else {}
        self._turns: dict[Rotary, tuple[ir.Value, ir.Value]] = {}
        self._masks: dict[int, ir.Value] = {}
        self._presents: dict[str, ir.Value] = {}

    def _caches(self, prefix: str, rows: str) -> dict[str, ir.Value]:
        config = self._config
        dims = (1, config.groups, rows, config.head)
        names = [f"{i}.{part}" for i in range(config.layers) for part in ("key", "value")]
        return {name: typed(f"{prefix}.{name}", FLOAT, *dims) for name in names}

    def build(self) -> ir.Model:
        config, e = self._config, self._e
        self._number_rows()
        x = e.gather(self._ids, "embedding")
        if config.embedding_scale != 1:
            x = e.op("Mul", x, e.number(config.embedding_scale))
        if config.learned:
            x = e.op("Add", x, e.gather(self._positions, "positions"))
        for layer in range(config.layers):
            x = self._layer(x, layer)
        if not self._decode:
            x = e.op("Gather", x, e.const([-1]), axis=1)
        x = self._norm(x, "norm")
        logits = e.linear(x, "embedding" if config.tied else "head")
        if config.logit_scale != 1:
            logits = e.op("Mul", logits, e.number(config.logit_scale))
        logits = cap(e, logits, config.logit_cap)
        rows = "sequence" if self._decode else 1
        outputs = [as_output(logits, "logits", FLOAT, 1, rows, config.vocabulary)]
        total = "total" if self._decode else "sequence"
        dims = (1, config.groups, total, config.head)
        for name, value in self._presents.items():
            outputs.append(as_output(value, f"present.{name}", FLOAT, *dims))
        inputs = [self._ids, *self._pasts.values()]
        return e.model(DECODE if self._decode else PREFILL, inputs, outputs)

    def _number_rows(self) -> None:
        """Emit the positions of the new rows, [S], and of all rows, [P + S]."""
        e, zero, one = self._e, self._e.const(0), self._e.const(1)
        rows = e.op("Squeeze", e.op("Shape", self._ids, start=1, end=2), e.const([0]))
        start, total = zero, rows
        if self._decode:
            first = self._pasts["0.key"]
            start = e.op("Squeeze", e.op("Shape", first, start=2, end=3), e.const([0]))
            total = e.op("Add", start, rows)
        self._positions = e.op("Range", start, total, one)
        self._columns = e.op("Range", zero, total, one) if self._decode else self._positions

    def _mask(self, span: int) -> ir.Value:
        """Return the mask that is added to scores, [S, P + S]: one for all layers of a span."""
        if span not in self._masks:
            e = self._e
            here = e.op("Unsqueeze", self._positions, e.const([1]))
            seen = e.op("LessOrEqual", self._columns, here)
            if span:
                first = e.op("Sub", here, e.const(span))
                seen = e.op("And", seen, e.op("Greater", self._columns, first))
            hidden = e.number(-np.inf)
            self._masks[span] = e.op("Where", seen, e.number(0.0), hidden)
        return self._masks[span]

    def _turn(self, rotary: Rotary) -> tuple[ir.Value, ir.Value]:
        """Return cosines and sines, [1, S, size / 2]."""
        if rotary not in self._turns:
            e = self._e
            rows = e.op("Cast", self._positions, to=int(FLOAT))
            turns = e.const([rotary.frequencies], np.float32)
            angles = e.op("Mul", e.op("Unsqueeze", rows, e.const([1])), turns)
            angles = e.op("Unsqueeze", angles, e.const([0]))
            cos, sin = e.op("Cos", angles), e.op("Sin", angles)
            if rotary.factor != 1:
                factor = e.number(rotary.factor)
                cos, sin = e.op("Mul", cos, factor), e.op("Mul", sin, factor)
            self._turns[rotary] = cos, sin
        return self._turns[rotary]

    def _norm(self, x: ir.Value, name: str) -> ir.Value:
        config = self._config
        return norm(
            self._e, x, name, kind=config.norm, epsilon=config.epsilon, offset=config.offset
        )

    def _layer(self, x: ir.Value, layer: int) -> ir.Value:
        config = self._config
        rows = self._norm(x, f"{layer}.norm1")
        found = self._after(self._attention(rows, layer), f"{layer}.norm1.post")
        if config.parallel:
            rows = rows if config.shared_norm else self._norm(x, f"{layer}.norm2")
            more = self._after(self._feed_forward(rows, layer), f"{layer}.norm2.post")
            return self._e.op("Add", x, self._e.op("Add", found, more))
        x = self._e.op("Add", x, found)
        more = self._feed_forward(self._norm(x, f"{layer}.norm2"), layer)
        return self._e.op("Add", x, self._after(more, f"{layer}.norm2.post"))

    def _after(self, x: ir.Value, name: str) -> ir.Value:
        """Return what a part adds to the residual stream."""
        config = self._config
        if config.post_norms:
            x = self._norm(x, name)
        if config.residual_scale != 1:
            x = self._e.op("Mul", x, self._e.number(config.residual_scale))
        return x

    def _feed_forward(self, x: ir.Value, layer: int) -> ir.Value:
        config, e = self._config, self._e
        up = e.linear(x, f"{layer}.up")
        if config.gated:
            gate = activation(e, e.linear(x, f"{layer}.gate"), config.activation)
            inner = e.op("Mul", gate, up)
        else:
            inner = activation(e, up, config.activation)
        return e.linear(inner, f"{layer}.down")

    def _heads(self, x: ir.Value, layer: int, part: str, count: int) -> ir.Value:
        """Return queries, keys or values as [1, heads, S, D], normed and rotated."""
        config, e = self._config, self._e
        x = e.linear(x, f"{layer}.{part}")
        shape = e.const([0, 0, count, config.head])
        if part != "v" and config.query_norm:
            x = e.op("Reshape", x, shape)
            x = self._norm(x, f"{layer}.{part}_norm")
            x = e.op("Reshape", x, e.const([0, 0, count * config.head]))
        rotary = config.rotary[layer] if config.rotary else None
        if part != "v" and rotary is not None:
            x = e.op(
                "RotaryEmbedding",
                x,
                *self._turn(rotary),
                name=f"{layer}.{part}",
                num_heads=count,
                interleaved=int(rotary.interleaved),
                rotary_embedding_dim=0 if rotary.size == config.head else rotary.size,
            )
        return e.op("Transpose", e.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def _attention(self, x: ir.Value, layer: int) -> ir.Value:
        config, e = self._config, self._e
        q = self._heads(x, layer, "q", config.heads)
        k = self._appended(self._heads(x, layer, "k", config.groups), f"{layer}.key")
        v = self._appended(self._heads(x, layer, "v", config.groups), f"{layer}.value")
        each = config.heads // config.groups
        order = [0, 1, 3, 2]
        if each > 1:
            k, v = (e.op("Unsqueeze", value, e.const([2])) for value in (k, v))
            q = e.op("Reshape", q, e.const([0, config.groups, each, -1, config.head]))
            order = [0, 1, 2, 4, 3]
        scores = e.op("MatMul", q, e.op("Transpose", k, perm=order), name=f"{layer}.scores")
        scores = e.op("Mul", scores, e.number(config.score_scale))
        scores = cap(e, scores, config.score_cap)
        span = config.spans[layer] if config.spans else 0
        scores = e.op("Add", scores, self._mask(span))
        found = e.op("MatMul", e.op("Softmax", scores, axis=-1), v, name=f"{layer}.attention")
        if each > 1:
            found = e.op("Reshape", found, e.const([0, config.heads, -1, config.head]))
        found = e.op("Transpose", found, perm=[0, 2, 1, 3])
        found = e.op("Reshape", found, e.const([0, 0, config.heads * config.head]))
        return e.linear(found, f"{layer}.o")

    def _appended(self, rows: ir.Value, name: str) -> ir.Value:
        """Return the rows of the cache with the new ones, which are an output."""
        e = self._e
        if self._decode:
            rows = e.op("Concat", self._pasts[name], rows, axis=2)
        self._presents[name] = rows
        return rows
