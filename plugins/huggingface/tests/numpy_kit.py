"""Small models with random weights, written as transformers writes them, and computed in numpy."""

from __future__ import annotations

import json
import math

import numpy as np
from safetensors.numpy import save_file

VOCABULARY, WIDTH, HEADS, GROUPS, HEAD, HIDDEN, LAYERS = 50, 24, 4, 2, 8, 40, 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}
GROUPED = {**SIZES, "num_key_value_heads": GROUPS, "head_dim": HEAD}
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def weights(
    groups=GROUPS, head=HEAD, biased=(), norms=("norm1", "norm2"), norm_bias=False, gate=True
):
    """Return weights of a decoder, matrices as [outputs, inputs], by the names of this kit."""
    rng = np.random.default_rng(0)
    shapes = {
        "q": (HEADS * head, WIDTH),
        "k": (groups * head, WIDTH),
        "v": (groups * head, WIDTH),
        "o": (WIDTH, HEADS * head),
        "up": (HIDDEN, WIDTH),
        "down": (WIDTH, HIDDEN),
    }
    if gate:
        shapes["gate"] = (HIDDEN, WIDTH)
    found = {"embedding": rng.standard_normal((VOCABULARY, WIDTH))}
    found["head"] = rng.standard_normal((VOCABULARY, WIDTH))
    scales = {"norm": WIDTH}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            found[f"{layer}.{name}"] = 1.5 * rng.standard_normal(shape) * shape[1] ** -0.5
            if name in biased:
                found[f"{layer}.{name}.bias"] = rng.standard_normal(shape[0]) * 0.3
        for name in norms:
            scales[f"{layer}.{name}"] = head if name in ("q_norm", "k_norm") else WIDTH
    for name, size in scales.items():
        found[name] = 1 + 0.2 * rng.standard_normal(size)
        if norm_bias:
            found[f"{name}.bias"] = 0.2 * rng.standard_normal(size)
    return {name: value.astype(np.float32) for name, value in found.items()}


def save(folder, config, tensors):
    """Write a folder of a model."""
    (folder / "config.json").write_text(json.dumps(config))
    dense = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(dense, folder / "model.safetensors")


def softmax(x):
    exponents = np.exp(x - x.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


class Model:
    """A model in float64; the options of a decoder are those of its family.

    Args:
        w: weights by the names of this kit.
        kind: of the norms, ``rms`` or ``layer``; `offset` is added to scales of the first.
        bases: the base of each layer's rotary frequencies; None where nothing is rotated.
        rotated: how many elements of a head are.
        spans: how many positions a row of each layer sees; 0 for all before.
        parallel: where the feed-forward part reads what attention reads, whether its norm is
            ``shared`` or its ``own``.
    """

    def __init__(
        self, w, kind="rms", epsilon=1e-5, offset=0, activation="silu", groups=GROUPS, head=HEAD,
        bases=(1e4,) * LAYERS, rotated=None, spans=(0,) * LAYERS, parallel="", score=None,
        cap=0, logit_cap=0, embedding=1, residual=1, logit=1,
    ):  # fmt: skip
        self.w = {name: value.astype(np.float64) for name, value in w.items()}
        self.kind, self.epsilon, self.offset = kind, epsilon, offset
        self.activation, self.parallel = ACTIVATIONS[activation], parallel
        self.groups, self.head, self.bases, self.spans = groups, head, bases, spans
        self.rotated = rotated or head
        self.score = head**-0.5 if score is None else score
        self.cap, self.logit_cap = cap, logit_cap
        self.embedding, self.residual, self.logit = embedding, residual, logit

    def norm(self, x, name):
        if name not in self.w:
            return x
        if self.kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon)
        return x * (self.w[name] + self.offset) + self.w.get(f"{name}.bias", 0)

    def linear(self, x, name):
        return x @ self.w[name].T + self.w.get(f"{name}.bias", 0)

    def rotate(self, x, base):
        """Rotate the first elements of x, [S, heads, D], whose pairs are half of them apart."""
        half = self.rotated // 2
        turns = np.outer(np.arange(len(x)), base ** (-np.arange(half) / half))[:, None]
        pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * turns)
        return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], -1)

    def attention(self, x, layer):
        rows = len(x)
        q, k, v = (self.linear(x, f"{layer}.{part}").reshape(rows, -1, self.head) for part in "qkv")
        q, k = self.norm(q, f"{layer}.q_norm"), self.norm(k, f"{layer}.k_norm")
        if self.bases[layer]:
            q, k = (self.rotate(value, self.bases[layer]) for value in (q, k))
        k, v = (np.repeat(value, HEADS // self.groups, axis=1) for value in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * self.score
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        distance = np.subtract.outer(np.arange(rows), np.arange(rows))
        seen = (distance >= 0) & (distance < (self.spans[layer] or rows))
        found = np.einsum("hij,jhd->ihd", softmax(np.where(seen, scores, -np.inf)), v)
        return self.linear(found.reshape(rows, -1), f"{layer}.o")

    def feed_forward(self, x, layer):
        up = self.linear(x, f"{layer}.up")
        if f"{layer}.gate" in self.w:
            return self.linear(
                self.activation(self.linear(x, f"{layer}.gate")) * up, f"{layer}.down"
            )
        return self.linear(self.activation(up), f"{layer}.down")

    def logits(self, ids):
        """Return the logits of all positions, [S, V]."""
        x = self.w["embedding"][ids] * self.embedding
        if "positions" in self.w:
            x = x + self.w["positions"][: len(ids)]
        for layer in range(LAYERS):
            rows = self.norm(x, f"{layer}.norm1")
            found = self.norm(self.attention(rows, layer), f"{layer}.post1") * self.residual
            if not self.parallel:
                x = x + found
            if self.parallel != "shared":
                rows = self.norm(x, f"{layer}.norm2")
            more = self.norm(self.feed_forward(rows, layer), f"{layer}.post2") * self.residual
            x = x + more + (found if self.parallel else 0)
        x = self.norm(x, "norm") @ self.w.get("head", self.w["embedding"]).T * self.logit
        return self.logit_cap * np.tanh(x / self.logit_cap) if self.logit_cap else x

    def hidden(self, ids, mask):
        """Return the last hidden state of an encoder, [S, W]; norms are behind what they norm."""
        x = self.norm(self.w["embedding"][ids] + self.w["positions"], "norm")
        for layer in range(LAYERS):
            q, k, v = (
                self.linear(x, f"{layer}.{part}").reshape(len(x), HEADS, -1) for part in "qkv"
            )
            scores = np.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
            scores = softmax(np.where(mask, scores, -1e30))
            found = np.einsum("hij,jhd->ihd", scores, v).reshape(x.shape)
            x = self.norm(x + self.linear(found, f"{layer}.o"), f"{layer}.norm1")
            x = self.norm(x + self.feed_forward(x, layer), f"{layer}.norm2")
        return x
