"""Decoders of transformers: their configurations, and the names of their tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrowpass_decoders import Config, Rotary
from narrowpass_huggingface.settings import Settings
from narrowpass_huggingface.tensors import Part
from narrowpass_ir.errors import ModelError

_LLAMA = {
    "norm1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMED = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_GEMMA = {
    **_LLAMA,
    "norm1.post": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "norm2.post": "post_feedforward_layernorm",
}
_TOP = {"embedding": "embed_tokens", "norm": "norm"}


@dataclass(frozen=True)
class _Family:
    """What is common to the models of a ``model_type``.

    Attributes:
        layer: tensors of a layer, by the names of `narrowpass_decoders`.
        top: tensors of none.
        stack: what stands before the number of a layer.
        head: the tensor of the head.
        fixed: fields of `Config` that are the same for all.
        eps: the field of the epsilon.
        partial: the share of a head that is rotated, where the file does not say it.
        tied: whether embeddings are tied where the file does not say it.
    """

    layer: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    stack: str = "layers."
    head: str = "lm_head"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    eps: str = "rms_norm_eps"
    partial: float = 1.0
    tied: bool = False


_PLAIN = _Family(_LLAMA)
_GEMMAS = {"offset": 1.0, "post_norms": True}

FAMILIES: Mapping[str, _Family] = {
    "llama": _PLAIN,
    "mistral": _PLAIN,
    "granite": _PLAIN,
    "smollm3": _Family(_LLAMA, tied=True),
    "qwen2": _PLAIN,
    "qwen3": _Family({**_LLAMA, **_NORMED}, fixed={"query_norm": True}),
    "gemma": _Family(_LLAMA, fixed={"offset": 1.0}, tied=True),
    "gemma2": _Family(_GEMMA, fixed=_GEMMAS, tied=True),
    "gemma3_text": _Family({**_GEMMA, **_NORMED}, fixed={**_GEMMAS, "query_norm": True}, tied=True),
    "phi3": _Family(_LLAMA),
    "phi": _Family(
        {
            **{name: _LLAMA[name] for name in ("norm1", "q", "k", "v")},
            "o": "self_attn.dense",
            "up": "mlp.fc1",
            "down": "mlp.fc2",
        },
        top={"embedding": "embed_tokens", "norm": "final_layernorm"},
        fixed={"norm": "layer", "parallel": True, "shared_norm": True, "gated": False},
        eps="layer_norm_eps",
        partial=0.5,
    ),
    "gpt_neox": _Family(
        {
            "norm1": "input_layernorm",
            "o": "attention.dense",
            "norm2": "post_attention_layernorm",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        },
        top={"embedding": "embed_in", "norm": "final_layer_norm"},
        head="embed_out",
        fixed={"norm": "layer", "gated": False},
        eps="layer_norm_eps",
        partial=0.25,
    ),
    "gpt2": _Family(
        {"norm1": "ln_1", "norm2": "ln_2"},
        top={"embedding": "wte", "positions": "wpe", "norm": "ln_f"},
        stack="h.",
        fixed={"norm": "layer", "gated": False},
        eps="layer_norm_epsilon",
        tied=True,
    ),
}
"""By ``model_type``."""

_PREFIXES = ("", "model.", "transformer.", "gpt_neox.")


def decoder_of(settings: Settings, tensors: Collection[str]) -> tuple[Config, dict[str, Part]]:
    """Return the configuration of a decoder, and the part of a tensor for each weight.

    Args:
        settings: of the folder.
        tensors: their names.

    Raises:
        ModelError: the architecture, or a setting of it, is not supported.
    """
    family = FAMILIES.get(settings.kind)
    if family is None:
        raise ModelError(
            f"model_type {settings.kind!r} is not supported; supported decoders are "
            f"{', '.join(sorted(FAMILIES))}, and there are encoders"
        )
    for name in ("qk_layernorm", "use_bidirectional_attention", "scale_attn_by_inverse_layer_idx"):
        settings.refuse(name)
    config = _config(settings, family, tensors)
    return config, _names(settings, family, config, tensors)


def _config(settings: Settings, family: _Family, tensors: Collection[str]) -> Config:
    heads = settings.count("num_attention_heads", "n_head")
    width = settings.count("hidden_size", "n_embd")
    layers = settings.layers("num_hidden_layers", "n_layer", tensors=tensors)
    types = _layer_types(settings, layers)
    span = settings.count("sliding_window") if "sliding_attention" in types else 0
    gemma, learned = settings.kind.startswith("gemma"), "positions" in family.top
    gated = bool(family.fixed.get("gated", True))
    default = "gelu_pytorch_tanh" if gemma else "silu" if gated else "gelu_new"
    scale = settings.number("query_pre_attn_scalar", default=settings.head) ** -0.5
    headless = not any(name == f"{family.head}.weight" for name in tensors)
    tied = settings.flag("tie_word_embeddings", default=family.tied or headless)
    granite = settings.kind == "granite"
    parallel = bool(family.fixed.get("parallel")) or (
        settings.kind == "gpt_neox" and settings.flag("use_parallel_residual", default=True)
    )
    return Config(
        vocabulary=settings.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        groups=settings.count("num_key_value_heads", default=heads),
        head=settings.head,
        hidden=settings.count("intermediate_size", "n_inner", default=4 * width),
        epsilon=settings.number(family.eps, default=1e-6 if gemma else 1e-5),
        score_scale=settings.number("attention_multiplier", default=scale) if granite else scale,
        # Gemma's first files call it gelu, and mean the approximation.
        activation="gelu_tanh"
        if settings.kind == "gemma"
        else settings.activation(
            "hidden_activation", "hidden_act", "activation_function", default=default
        ),
        rotary=() if learned else _rotaries(settings, family, types),
        spans=tuple(span if kind == "sliding_attention" else 0 for kind in types),
        learned=settings.count("n_positions", "n_ctx") if learned else 0,
        tied=tied,
        embedding_scale=float(np.float32(width**0.5)) if gemma else _multiplier(settings),
        score_cap=settings.number("attn_logit_softcapping", default=0.0),
        logit_cap=settings.number("final_logit_softcapping", default=0.0),
        logit_scale=1 / settings.number("logits_scaling", default=1.0) if granite else 1.0,
        residual_scale=settings.number("residual_multiplier", default=1.0) if granite else 1.0,
        **{**family.fixed, "parallel": parallel},
    )


def _multiplier(settings: Settings) -> float:
    granite = settings.kind == "granite"
    return settings.number("embedding_multiplier", default=1.0) if granite else 1.0


def _layer_types(settings: Settings, layers: int) -> list[str]:
    """Return ``full_attention`` or ``sliding_attention`` for each layer."""
    given = settings.fields.get("layer_types")
    if isinstance(given, list):
        unknown = set(map(str, given)) - {"full_attention", "sliding_attention"}
        if unknown or len(given) != layers:
            raise ModelError(f"config.json: layer_types {sorted(unknown)} are not supported")
        return given
    span = settings.fields.get("sliding_window") is not None
    if settings.kind == "gemma2":
        local = [layer % 2 == 0 for layer in range(layers)]
    elif settings.kind == "gemma3_text":
        every = settings.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
        local = [(layer + 1) % every != 0 for layer in range(layers)]
    elif settings.kind in ("qwen2", "qwen3", "smollm3"):
        if settings.fields.get("use_sliding_window"):
            raise ModelError("config.json: use_sliding_window without layer_types")
        local = [False] * layers
    else:
        local = [span and settings.kind in ("mistral", "phi3")] * layers
    return ["sliding_attention" if here else "full_attention" for here in local]


def _rotaries(settings: Settings, family: _Family, types: list[str]) -> tuple[Rotary | None, ...]:
    found = {kind: settings.rotary(kind, partial=family.partial) for kind in set(types)}
    given = settings.fields.get("no_rope_layers")
    if settings.kind != "smollm3":
        return tuple(found[kind] for kind in types)
    if not isinstance(given, list) or len(given) != len(types):
        every = settings.count("no_rope_layer_interval", default=4)
        given = [(layer + 1) % every for layer in range(len(types))]
    return tuple(
        found[kind] if rotated else None for kind, rotated in zip(types, given, strict=True)
    )


def _names(
    settings: Settings, family: _Family, config: Config, tensors: Collection[str]
) -> dict[str, Part]:
    """Return the part of a tensor for each weight, with its bias."""
    stem = f"{family.top['embedding']}.weight"
    prefix = next((p for p in _PREFIXES if f"{p}{stem}" in tensors), None)
    if prefix is None:
        raise ModelError(f"has no tensor {stem!r}; is this a model of type {settings.kind!r}?")
    parts = {name: Part(f"{prefix}{value}") for name, value in family.top.items()}
    parts["head"] = Part(family.head)
    for layer in range(config.layers):
        stack = f"{prefix}{family.stack}{layer}."
        whole = {name: Part(value) for name, value in family.layer.items()}
        for name, part in {**whole, **_fused(settings.kind, config)}.items():
            parts[f"{layer}.{name}"] = _renamed(part, f"{stack}{part.name}")
    found = {}
    for name, part in parts.items():
        found[name] = _renamed(part, f"{part.name}.weight")
        found[f"{name}.bias"] = _renamed(part, f"{part.name}.bias")
    return found


def _renamed(part: Part, name: str) -> Part:
    return Part(name, part.first, part.count, part.columns, part.third, part.heads)


def _fused(kind: str, config: Config) -> dict[str, Part]:
    """Return the parts of a layer that are not whole tensors of [N, K]."""
    q, k, hidden = config.heads * config.head, config.groups * config.head, config.hidden
    if kind == "phi3":
        joined, up = "self_attn.qkv_proj", "mlp.gate_up_proj"
        return {
            "q": Part(joined, 0, q),
            "k": Part(joined, q, k),
            "v": Part(joined, q + k, k),
            "gate": Part(up, 0, hidden),
            "up": Part(up, hidden, hidden),
        }
    if kind == "gpt_neox":
        joined = "attention.query_key_value"
        return {
            name: Part(joined, third=third, heads=config.heads) for third, name in enumerate("qkv")
        }
    if kind == "gpt2":
        return {
            **{name: Part("attn.c_attn", i * q, q, columns=True) for i, name in enumerate("qkv")},
            "o": Part("attn.c_proj", columns=True),
            "up": Part("mlp.c_fc", columns=True),
            "down": Part("mlp.c_proj", columns=True),
        }
    return {}
