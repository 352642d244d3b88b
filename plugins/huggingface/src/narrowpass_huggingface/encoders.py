"""Encoders of transformers, such as BERT: their configurations, and the names of their tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from narrowpass_decoders import EncoderConfig
from narrowpass_huggingface.settings import Settings
from narrowpass_huggingface.tensors import Part
from narrowpass_ir.errors import ModelError

_BERT = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}
_BERT_TOP = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_DISTIL = {
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "o": "attention.out_lin",
    "norm1": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "norm2": "output_layer_norm",
}


@dataclass(frozen=True)
class _Family:
    """What is common to the models of a ``model_type``; see `narrowpass_huggingface.architecture`.

    ``padded`` says that positions count the tokens that are not padding.
    """

    layer: Mapping[str, str]
    top: Mapping[str, str]
    stack: str = "encoder.layer."
    padded: bool = False


_ROBERTA = _Family(_BERT, _BERT_TOP, padded=True)
FAMILIES: Mapping[str, _Family] = {
    "bert": _Family(_BERT, _BERT_TOP),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _Family(
        _DISTIL,
        {name: _BERT_TOP[name] for name in ("embedding", "positions", "norm")},
        stack="transformer.layer.",
    ),
}
"""By ``model_type``."""

_PREFIXES = ("", "bert.", "roberta.", "distilbert.")


def is_encoder(settings: Settings) -> bool:
    """Return whether the model is one of `FAMILIES`."""
    return settings.kind in FAMILIES


def encoder_of(
    settings: Settings, tensors: Collection[str]
) -> tuple[EncoderConfig, dict[str, Part]]:
    """Return the configuration of an encoder, and the tensor of each weight.

    Raises:
        ModelError: a setting that is not supported, or a field that is missing.
    """
    family = FAMILIES[settings.kind]
    for name in ("is_decoder", "add_cross_attention"):
        settings.refuse(name)
    kind = settings.fields.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ModelError(f"config.json: position_embedding_type {kind!r:.60} is not supported")
    stem = f"{family.top['embedding']}.weight"
    prefix = next((p for p in _PREFIXES if f"{p}{stem}" in tensors), None)
    if prefix is None:
        raise ModelError(f"has no tensor {stem!r}; is this a model of type {settings.kind!r}?")
    width = settings.count("hidden_size", "dim")
    layers = settings.layers("num_hidden_layers", "n_layers", tensors=tensors)
    heads = settings.count("num_attention_heads", "n_heads")
    names = {name: f"{prefix}{value}" for name, value in family.top.items()}
    for layer in range(layers):
        stack = f"{prefix}{family.stack}{layer}."
        names |= {f"{layer}.{name}": stack + value for name, value in family.layer.items()}
    parts = {}
    for name, value in names.items():
        weight, older = f"{value}.weight", f"{value}.gamma"
        parts[name] = Part(older if older in tensors else weight)
        bias, older = f"{value}.bias", f"{value}.beta"
        parts[f"{name}.bias"] = Part(older if older in tensors else bias)
    config = EncoderConfig(
        width=width,
        layers=layers,
        heads=heads,
        epsilon=settings.number("layer_norm_eps", default=1e-12),
        activation=settings.activation("hidden_act", "activation", default="gelu"),
        padding=settings.count("pad_token_id", default=1) if family.padded else None,
    )
    return config, parts
