"""The files beside a model: tokenizer, chat template, and what a generator reads."""

from __future__ import annotations

import json
from typing import Any

from narrowpass_decoders import Config
from narrowpass_gguf.metadata import Metadata
from narrowpass_gguf.tokenizer import Special, tokenizer_json


def assets_of(metadata: Metadata, config: Config) -> tuple[dict[str, bytes], list[str]]:
    """Return the assets of a file by name, and a sentence for each that cannot be written."""
    special = Special.of(metadata)
    found = {
        "config.json": _json(_model(metadata, config)),
        "generation_config.json": _json(_generation(special)),
        "tokenizer_config.json": _json(_tokenizer_config(metadata, special)),
    }
    notes = []
    tokenizer = tokenizer_json(metadata, special)
    if isinstance(tokenizer, str):
        notes.append(f"it becomes a model without tokenizer.json: {tokenizer}")
    else:
        found["tokenizer.json"] = _json(tokenizer)
    template = metadata.get("tokenizer.chat_template", str, "")
    if template:
        found["chat_template.jinja"] = template.encode()
    return found, notes


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"


def _model(metadata: Metadata, config: Config) -> dict[str, Any]:
    return {
        "model_type": metadata.architecture,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head,
        "intermediate_size": config.hidden,
        "max_position_embeddings": metadata.get("{}.context_length", int, 0),
        "tie_word_embeddings": config.tied,
    }


def _generation(special: Special) -> dict[str, Any]:
    ends = special.ends
    found: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else list(ends)}
    if special.begin is not None:
        found["bos_token_id"] = special.begin
    if special.padding is not None:
        found["pad_token_id"] = special.padding
    return found if ends else {k: v for k, v in found.items() if k != "eos_token_id"}


def _tokenizer_config(metadata: Metadata, special: Special) -> dict[str, Any]:
    tokens = special.tokens
    found: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": special.add_begin,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("{}.context_length", int, 0),
    }
    named = {"bos_token": special.begin, "pad_token": special.padding, "unk_token": special.unknown}
    named["eos_token"] = special.end
    for name, index in named.items():
        if index is not None and index < len(tokens):
            found[name] = tokens[index]
    return found
