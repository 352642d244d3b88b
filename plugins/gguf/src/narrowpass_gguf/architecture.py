"""Architectures of GGUF files: their configurations, and the names of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_decoders import Config, Rotary, rotary
from narrowpass_gguf.metadata import Metadata
from narrowpass_gguf.weights import GgufWeights, Part
from narrowpass_ir.errors import ModelError


@dataclass(frozen=True)
class _Family:
    """What files of an architecture do not say.

    Attributes:
        interleaved: whether rotary pairs are neighbours: the converter has permuted q and k.
        query_norm: see `Config`.
        gemma: whether embeddings are scaled and the activation is gelu.
        post_norms: see `Config`.
        local: every so many layers one sees all positions, and the others a span; 0 where all
            are alike.
        local_base: of rotary frequencies of layers with a span; 0 for that of the others.
        fused: whether q, k and v are one tensor, and gate and up.
    """

    interleaved: bool = False
    query_norm: bool = False
    gemma: bool = False
    post_norms: bool = False
    local: int = 0
    local_base: float = 0.0
    fused: bool = False


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(interleaved=True),
    "qwen2": _Family(),
    "qwen3": _Family(query_norm=True),
    "gemma": _Family(gemma=True),
    "gemma2": _Family(gemma=True, post_norms=True, local=2),
    "gemma3": _Family(gemma=True, post_norms=True, local=6, local_base=10_000.0, query_norm=True),
    "phi3": _Family(fused=True),
}
"""By the field ``general.architecture``."""

_LAYER = {
    "norm1": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "norm1.post": "post_attention_norm",
    "norm2": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "norm2.post": "post_ffw_norm",
}


def family_of(metadata: Metadata) -> _Family:
    """Return the family of a file.

    Raises:
        ModelError: its architecture is not supported.
    """
    found = FAMILIES.get(metadata.architecture)
    if found is None:
        raise ModelError(
            f"its architecture {metadata.architecture!r} is not supported; supported are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return found


def names_of(metadata: Metadata) -> dict[str, Part]:
    """Return the tensor of each weight, by the names of `narrowpass_decoders`."""
    family = family_of(metadata)
    names = {
        "embedding": Part("token_embd.weight"),
        "norm": Part("output_norm.weight"),
        "head": Part("output.weight"),
    }
    for layer in range(_count(metadata, "block_count", most=10_000)):
        for name, stem in _LAYER.items():
            for kind, suffix in (("weight", ""), ("bias", ".bias")):
                names[f"{layer}.{name}{suffix}"] = Part(f"blk.{layer}.{stem}.{kind}")
        if family.fused:
            names.update(_fused(metadata, layer))
    return names


def _fused(metadata: Metadata, layer: int) -> dict[str, Part]:
    """Return the rows of q, k and v in one tensor, and of gate and up in another."""
    q = _count(metadata, "attention.head_count") * _head(metadata)
    k = _groups(metadata) * _head(metadata)
    hidden = _count(metadata, "feed_forward_length")
    joined, up = f"blk.{layer}.attn_qkv.weight", f"blk.{layer}.ffn_up.weight"
    return {
        f"{layer}.q": Part(joined, 0, q),
        f"{layer}.k": Part(joined, q, k),
        f"{layer}.v": Part(joined, q + k, k),
        f"{layer}.gate": Part(up, 0, hidden),
        f"{layer}.up": Part(up, hidden, hidden),
    }


def _count(metadata: Metadata, key: str, *, most: int = 1 << 31) -> int:
    value: Any = metadata.get(f"{{}}.{key}", object)
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ModelError(f"{metadata.architecture}.{key} is {value!r:.60}, which is not supported")
    return value


def _groups(metadata: Metadata) -> int:
    heads = _count(metadata, "attention.head_count")
    return metadata.get("{}.attention.head_count_kv", int, heads)


def _head(metadata: Metadata) -> int:
    width = _count(metadata, "embedding_length")
    heads = _count(metadata, "attention.head_count")
    return metadata.get("{}.attention.key_length", int, width // heads)


def config_of(metadata: Metadata, weights: GgufWeights) -> Config:
    """Return the configuration of a file's model.

    Raises:
        ModelError: the architecture is not supported, or a field is missing.
    """
    family = family_of(metadata)
    if metadata.get("{}.expert_count", int, 0):
        raise ModelError("it has experts, which are not supported; use a model without")
    layers, width = _count(metadata, "block_count"), _count(metadata, "embedding_length")
    heads, head = _count(metadata, "attention.head_count"), _head(metadata)
    span = metadata.get("{}.attention.sliding_window", int, 0)
    local = [family.local > 0 and (i + 1) % family.local != 0 for i in range(layers)]
    if family.local and not span:
        raise ModelError(f"lacks {metadata.architecture}.attention.sliding_window")
    spans = tuple(span if family.local and here else 0 for here in local)
    if family.fused and span:
        spans = (span,) * layers
    turns = _rotary(metadata, family, head)
    return Config(
        vocabulary=weights.shape("embedding")[0],
        width=width,
        layers=layers,
        heads=heads,
        groups=_groups(metadata),
        head=head,
        hidden=_count(metadata, "feed_forward_length"),
        epsilon=metadata.get("{}.attention.layer_norm_rms_epsilon", float),
        score_scale=_score_scale(metadata, head, width, heads, layers),
        activation="gelu_tanh" if family.gemma else "silu",
        rotary=tuple(turns[here] for here in local),
        spans=spans,
        tied=not weights.has("head"),
        query_norm=family.query_norm,
        post_norms=family.post_norms,
        embedding_scale=float(np.float32(width**0.5)) if family.gemma else 1.0,
        score_cap=metadata.get("{}.attn_logit_softcapping", float, 0.0),
        logit_cap=metadata.get("{}.final_logit_softcapping", float, 0.0),
    )


def _score_scale(metadata: Metadata, head: int, width: int, heads: int, layers: int) -> float:
    # The files do not say it: Gemma 2 and 3 of 27 B divide by the width of a head of the stream.
    kinds = {("gemma2", 46), ("gemma3", 62)}
    wide = (metadata.architecture, layers) in kinds
    return float((width / heads if wide else head) ** -0.5)


def _rotary(metadata: Metadata, family: _Family, head: int) -> dict[bool, Rotary]:
    """Return the rotary embeddings of layers that see all positions, and of those that do not."""
    size = metadata.get("{}.rope.dimension_count", int, head)
    base = metadata.get("{}.rope.freq_base", float, 10_000.0)
    kind = metadata.get("{}.rope.scaling.type", str, "none")
    scaling: dict[str, Any] = {}
    if kind not in ("none", ""):
        context = metadata.get("{}.context_length", int, 0)
        scaling = {
            "rope_type": kind,
            "factor": metadata.get("{}.rope.scaling.factor", float, 1.0),
            "original_max_position_embeddings": metadata.get(
                "{}.rope.scaling.original_context_length", int, context
            ),
        }
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if name in metadata.tensors:
            raise ModelError("its rope factors depend on the context, which is not supported")
    divisors: list[float] = []
    if "rope_freqs.weight" in metadata.tensors:
        stored = metadata.tensors["rope_freqs.weight"]
        raw = metadata.file.read(stored.offset, stored.nbytes)
        divisors = [float(number) for number in np.frombuffer(raw, "<f4")]
        if len(divisors) != size // 2:
            raise ModelError(f"rope_freqs.weight has {len(divisors)} numbers, and not {size // 2}")
    # Each is computed once: layers of one kind share the object, and so its cosines.
    turned = rotary(size, base, interleaved=family.interleaved, divisors=divisors, scaling=scaling)
    if not family.local_base:
        return {False: turned, True: turned}
    return {False: turned, True: rotary(size, family.local_base)}
