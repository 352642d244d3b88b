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
        local: every so many layers one sees all positions, and the others a span, where the file
            does not say which; 0 where all are alike.
        local_base: of rotary frequencies of layers with a span, where the file does not say it; 0
            for that of the others.
        gated: whether gate and up are one tensor.
    """

    interleaved: bool = False
    query_norm: bool = False
    gemma: bool = False
    post_norms: bool = False
    local: int = 0
    local_base: float = 0.0
    gated: bool = False


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(interleaved=True),
    "qwen2": _Family(),
    "qwen3": _Family(query_norm=True),
    "gemma": _Family(gemma=True),
    "gemma2": _Family(gemma=True, post_norms=True, local=2),
    "gemma3": _Family(gemma=True, post_norms=True, local=6, local_base=10_000.0, query_norm=True),
    "phi3": _Family(gated=True),
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
        if f"blk.{layer}.attn_qkv.weight" in metadata.tensors:
            names.update(_joined(metadata, layer))
        if family.gated:
            hidden, up = _count(metadata, "feed_forward_length"), f"blk.{layer}.ffn_up.weight"
            names[f"{layer}.gate"] = Part(up, 0, hidden)
            names[f"{layer}.up"] = Part(up, hidden, hidden)
    return names


def _joined(metadata: Metadata, layer: int) -> dict[str, Part]:
    """Return the rows of q, k and v, and their biases, in one tensor."""
    q = _count(metadata, "attention.head_count") * _head(metadata)
    k = _groups(metadata) * _head(metadata)
    found = {}
    for kind, suffix in (("weight", ""), ("bias", ".bias")):
        tensor = f"blk.{layer}.attn_qkv.{kind}"
        found[f"{layer}.q{suffix}"] = Part(tensor, 0, q)
        found[f"{layer}.k{suffix}"] = Part(tensor, q, k)
        found[f"{layer}.v{suffix}"] = Part(tensor, q + k, k)
    return found


def _count(metadata: Metadata, key: str, *, most: int = 1 << 31, default: int | None = None) -> int:
    given = () if default is None else (default,)
    value: Any = metadata.get(f"{{}}.{key}", object, *given)
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ModelError(f"{metadata.architecture}.{key} is {value!r:.60}, which is not supported")
    return value


def _groups(metadata: Metadata) -> int:
    heads = _count(metadata, "attention.head_count")
    return _count(metadata, "attention.head_count_kv", default=heads)


def _head(metadata: Metadata) -> int:
    width = _count(metadata, "embedding_length")
    heads = _count(metadata, "attention.head_count")
    return _count(metadata, "attention.key_length", default=width // heads)


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
    _refuse_other_fields(metadata, head)
    span = metadata.get("{}.attention.sliding_window", int, 0)
    local = _local_layers(metadata, family, layers)
    if family.local and not span:
        raise ModelError(f"lacks {metadata.architecture}.attention.sliding_window")
    # All layers of Phi 3 have the span of their file, which is 0 where there is none.
    every = metadata.architecture == "phi3"
    spans = tuple(span if here or every else 0 for here in local)
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


_NEUTRAL: Mapping[str, float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attention.shared_kv_layers": 0,
    "rope.scale_linear": 1,
    "rope.scaling.alpha": 0,
    "rope.scaling.attn_factor": 1,
    "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_ext_factor": 1,
    "rope.scaling.yarn_log_multiplier": 0,
}
"""Fields that are not read, and with which value they change nothing."""


def _refuse_other_fields(metadata: Metadata, head: int) -> None:
    """Refuse a file with a field that changes what is computed and is not read.

    Raises:
        ModelError: it has one.
    """
    same = {f"attention.{name}": head for name in ("value_length", "key_length_swa")}
    for key, neutral in {**_NEUTRAL, **same, "attention.value_length_swa": head}.items():
        found: object = metadata.get(f"{{}}.{key}", object, neutral)
        if found != neutral:
            raise ModelError(
                f"field {metadata.architecture}.{key} is {found!r:.60}, where only {neutral!r} is "
                "supported"
            )


def _local_layers(metadata: Metadata, family: _Family, layers: int) -> list[bool]:
    """Return for each layer whether it sees a span of positions only.

    Raises:
        ModelError: the file's pattern is not that of its layers.
    """
    if not family.local:
        return [False] * layers
    key = "{}.attention.sliding_window_pattern"
    pattern: Any = metadata.get(key, object, family.local)
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(here, bool | int) for here in pattern):
            raise ModelError(f"{pattern!r:.60} says of {len(pattern)} layers, and not of {layers}")
        return [bool(here) for here in pattern]
    if not isinstance(pattern, int) or pattern < 0:
        raise ModelError(
            f"{metadata.architecture}.attention.sliding_window_pattern is {pattern!r:.60}, and no "
            "number of layers"
        )
    # 0: all layers see a span.
    return [pattern == 0 or (i + 1) % pattern != 0 for i in range(layers)]


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
            "beta_fast": metadata.get("{}.rope.scaling.yarn_beta_fast", float, 32.0),
            "beta_slow": metadata.get("{}.rope.scaling.yarn_beta_slow", float, 1.0),
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
    local_base = metadata.get("{}.rope.freq_base_swa", float, family.local_base)
    if not local_base:
        return {False: turned, True: turned}
    return {False: turned, True: rotary(size, local_base)}
