"""What distinguishes one decoder from another, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from narrowpass_ir.errors import ModelError

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""Activations of the feed-forward part: gelu by erf, gelu_tanh by the approximation with tanh."""
_LARGEST = 2**31 - 1
_NUMBERS = (
    "epsilon",
    "score_scale",
    "offset",
    "embedding_scale",
    "score_cap",
    "logit_cap",
    "logit_scale",
    "residual_scale",
)


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (Su et al., RoFormer, arXiv:2104.09864).

    Attributes:
        size: elements of each head that are rotated, the first ones; even.
        frequencies: radians for each position, of each of the size / 2 pairs.
        interleaved: whether pairs are neighbours, and not half of the rotated elements apart.
        factor: what cosines and sines are multiplied by, as YaRN does.
    """

    size: int
    frequencies: tuple[float, ...]
    interleaved: bool = False
    factor: float = 1.0


@dataclass(frozen=True)
class Config:
    """The sizes and the form of a decoder.

    Attributes:
        vocabulary: rows of the embedding.
        width: of the residual stream.
        layers: number of layers.
        heads: of queries.
        groups: heads of keys and values; `heads` is a multiple.
        head: elements of a head.
        hidden: width of the feed-forward part.
        epsilon: of all norms.
        norm: ``rms`` or ``layer``.
        offset: what is added to the scale of an rms norm: 1 for Gemma.
        activation: one of `ACTIVATIONS`.
        gated: whether the activation multiplies a second matmul of the same rows.
        rotary: of each layer, in their order; None where there is none.
        spans: of each layer: how many positions a row sees, its own included; 0 for all before.
        learned: rows of the table of learned positions; 0 for none.
        tied: whether the head is the embedding.
        parallel: whether attention and feed-forward part read the same residual stream.
        shared_norm: whether one norm serves both; only where they are parallel.
        query_norm: whether queries and keys have a norm for each head.
        post_norms: whether results of attention and feed-forward part have norms of their own.
        embedding_scale: what embeddings are multiplied by.
        score_scale: what q·kᵀ is multiplied by.
        score_cap: c of c · tanh(scores / c); 0 for none.
        logit_cap: the same of logits.
        logit_scale: what logits are multiplied by.
        residual_scale: what attention and feed-forward part add is multiplied by.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    groups: int
    head: int
    hidden: int
    epsilon: float
    score_scale: float
    norm: str = "rms"
    offset: float = 0.0
    activation: str = "silu"
    gated: bool = True
    rotary: tuple[Rotary | None, ...] = field(default=())
    spans: tuple[int, ...] = field(default=())
    learned: int = 0
    tied: bool = False
    parallel: bool = False
    shared_norm: bool = False
    query_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    logit_scale: float = 1.0
    residual_scale: float = 1.0

    def check(self) -> None:
        """Refuse sizes that no decoder has.

        Raises:
            ModelError: a size that is not positive, or does not fit another; the message names it.
        """
        sizes = ("vocabulary", "width", "layers", "heads", "groups", "head", "hidden")
        for name in sizes:
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= _LARGEST:
                raise ModelError(f"its {name} is {value!r}, and must be a whole number from 1 on")
        if self.heads % self.groups:
            raise ModelError(f"{self.heads} heads cannot share {self.groups} heads of keys")
        if self.activation not in ACTIVATIONS:
            raise ModelError(
                f"its activation is {self.activation!r}; supported are {', '.join(ACTIVATIONS)}"
            )
        for name in ("rotary", "spans"):
            if len(getattr(self, name)) not in (0, self.layers):
                raise ModelError(f"its {name} must have one entry for each of {self.layers} layers")
        if any(not 0 <= span <= _LARGEST for span in self.spans):
            raise ModelError("a sliding window must have a size from 1 on")
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ModelError(f"its {name} is {value!r}, and must be a finite number")
        for rotary in self.rotary:
            if rotary is not None and (rotary.size % 2 or not 2 <= rotary.size <= self.head):
                raise ModelError(f"{rotary.size} elements of a head of {self.head} are no pairs")
