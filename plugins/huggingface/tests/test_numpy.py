"""Decoders and encoders compute what numpy computes from the same weights: no PyTorch is needed."""

from __future__ import annotations

import numpy as np
import numpy_kit as kit
import pytest

import narrowpass

LLAMA = {
    "norm1": "input_layernorm",
    **{part: f"self_attn.{part}_proj" for part in "qkvo"},
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "norm2": "post_attention_layernorm",
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "stack": "model.layers.",
}
GEMMA = {
    **LLAMA,
    "post1": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "post2": "post_feedforward_layernorm",
}
PHI = {
    **LLAMA,
    "o": "self_attn.dense",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "norm": "model.final_layernorm",
}
NEOX = {
    "norm1": "input_layernorm",
    "qkv": "attention.query_key_value",
    "o": "attention.dense",
    "norm2": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
    "embedding": "gpt_neox.embed_in",
    "norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "stack": "gpt_neox.layers.",
}
GPT2 = {
    "norm1": "ln_1",
    "qkv": "attn.c_attn",
    "o": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "stack": "transformer.h.",
}
BERT = {
    **{
        part: f"attention.self.{name}"
        for part, name in zip("qkv", ("query", "key", "value"), strict=True)
    },
    "o": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "stack": "encoder.layer.",
}
ALL = ("q", "k", "v", "o", "up", "down")
FOUR = ("norm1", "post1", "norm2", "post2")
HEADS_NORMED = ("norm1", "norm2", "q_norm", "k_norm")
ONE_GROUP = {"groups": kit.HEADS, "head": kit.WIDTH // kit.HEADS}


def named(w, names):
    """Return weights by the names of a family."""
    found = {}
    for name, value in w.items():
        stem, end = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
        layer, _, rest = stem.rpartition(".")
        start = f"{names['stack']}{layer}." if layer else ""
        found[f"{start}{names[rest]}.{end}"] = value
    return found


def joined(w, parts, whole, join=np.concatenate):
    """Return weights, of which some of each layer are one."""
    found = dict(w)
    for layer in range(kit.LAYERS):
        for end in ("", ".bias"):
            pieces = [found.pop(f"{layer}.{part}{end}", None) for part in parts]
            if pieces[0] is not None:
                found[f"{layer}.{whole}{end}"] = join(pieces)
    return found


def by_heads(pieces):
    """Join q, k and v as [heads, 3, head]."""
    rows = [piece.reshape(kit.HEADS, -1, *piece.shape[1:]) for piece in pieces]
    return np.stack(rows, 1).reshape(-1, *pieces[0].shape[1:])


def llama(w):
    return named(w, LLAMA)


def untied(w):
    return {name: value for name, value in w.items() if name != "head"}


def gemma(w):
    return named(untied(w), GEMMA)


def phi3(w):
    w = joined(joined(w, "qkv", "qkv"), ("gate", "up"), "gate_up")
    return named(w, {**LLAMA, "qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"})


def gpt2(w):
    found = named(joined(untied(w), "qkv", "qkv"), GPT2)
    turned = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {name: value.T if name.endswith(turned) else value for name, value in found.items()}


# Settings, weights of the kit, options of its model, and how a folder has the weights.
CASES = {
    "llama": (
        {**kit.GROUPED, "attention_bias": True, "rope_theta": 500.0, "rms_norm_eps": 1e-3},
        {"biased": (*ALL, "gate")},
        {"bases": (500.0,) * 3, "epsilon": 1e-3},
        llama,
    ),
    "mistral": ({**kit.GROUPED, "sliding_window": 3}, {}, {"spans": (3,) * 3}, llama),
    "granite": (
        {
            **kit.GROUPED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
        {},
        {"embedding": 3, "residual": 0.5, "score": 0.2, "logit": 0.5},
        llama,
    ),
    "smollm3": (
        {**kit.GROUPED, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": False},
        {},
        {"bases": (1e4, None, 1e4)},
        llama,
    ),
    "qwen3": (
        {
            **kit.GROUPED,
            "use_sliding_window": True,
            "sliding_window": 2,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        {"norms": HEADS_NORMED},
        {"spans": (0, 2, 0)},
        llama,
    ),
    "gemma": (
        kit.GROUPED,
        {},
        {"offset": 1, "activation": "tanh", "embedding": kit.WIDTH**0.5, "epsilon": 1e-6},
        llama,
    ),
    "gemma2": (
        {
            **kit.GROUPED,
            "sliding_window": 3,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 6.0,
        },
        {"norms": FOUR},
        {
            "offset": 1,
            "activation": "tanh",
            "embedding": kit.WIDTH**0.5,
            "epsilon": 1e-6,
            "spans": (3, 0, 3),
            "score": 20**-0.5,
            "cap": 4,
            "logit_cap": 6,
        },
        gemma,
    ),
    "gemma3_text": (
        {
            **kit.GROUPED,
            "sliding_window": 3,
            "sliding_window_pattern": 2,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e3,
        },
        {"norms": (*FOUR, "q_norm", "k_norm")},
        {
            "offset": 1,
            "activation": "tanh",
            "embedding": kit.WIDTH**0.5,
            "epsilon": 1e-6,
            "spans": (3, 0, 3),
            "bases": (1e3, 1e6, 1e3),
        },
        gemma,
    ),
    "phi3": ({**kit.GROUPED, "sliding_window": 4}, {}, {"spans": (4,) * 3}, phi3),
    "phi": (
        {**kit.SIZES, "head_dim": 8},
        {"groups": 4, "biased": ALL, "norms": ("norm1",), "norm_bias": True, "gate": False},
        {
            "kind": "layer",
            "activation": "tanh",
            "groups": 4,
            "rotated": 4,
            "parallel": "shared",
        },
        lambda w: named(w, PHI),
    ),
    "gpt_neox": (
        {**kit.SIZES, "head_dim": 8, "rotary_pct": 0.5, "hidden_act": "gelu"},
        {"groups": 4, "biased": ALL, "norm_bias": True, "gate": False},
        {
            "kind": "layer",
            "activation": "gelu",
            "groups": 4,
            "rotated": 4,
            "parallel": "own",
        },
        lambda w: named(joined(w, "qkv", "qkv", by_heads), NEOX),
    ),
    "gpt2": (
        {
            "vocab_size": kit.VOCABULARY,
            "n_embd": kit.WIDTH,
            "n_layer": kit.LAYERS,
            "n_head": kit.HEADS,
            "n_inner": kit.HIDDEN,
            "n_positions": 16,
        },
        {**ONE_GROUP, "biased": ALL, "norm_bias": True, "gate": False},
        {**ONE_GROUP, "kind": "layer", "activation": "tanh", "bases": (None,) * 3},
        gpt2,
    ),
}


TIED = {"gemma", "gemma2", "gemma3_text", "gpt2"}
"""Their head is the embedding, also where the folder has another one, as that of gemma here."""


@pytest.mark.parametrize("family", CASES)
def test_logits_of_a_prefill_and_of_decode_steps(family, tmp_path):
    settings, drawn, options, written = CASES[family]
    w = kit.weights(**drawn)
    if family == "gpt2":
        w["positions"] = np.random.default_rng(1).standard_normal((16, kit.WIDTH)).astype("f4")
    kit.save(tmp_path, {"model_type": family, **settings}, written(w))
    if family in TIED:
        w = untied(w)
    ids = np.random.default_rng(2).integers(0, kit.VOCABULARY, 11)
    expected = kit.Model(w, **options).logits(ids)
    with narrowpass.load(tmp_path, "reference", pipeline="", cache=False) as program:
        session = program.session()
        found = [session.run({"input_ids": ids[None, :6]}, "prefill")["logits"][0]]
        for start, end in ((6, 7), (7, 11)):
            given = {"input_ids": ids[None, start:end]}
            found.append(session.run(given, "decode")["logits"][0])
    # float32 against float64, over additions of at most 40 products in three layers.
    largest = np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(found), expected[5:], rtol=0, atol=2e-5 * largest)


@pytest.mark.parametrize("padding", [None, 1])
def test_hidden_states(padding, tmp_path):
    w = untied(kit.weights(**ONE_GROUP, biased=ALL, norm_bias=True, gate=False))
    table = np.random.default_rng(1).standard_normal((16, kit.WIDTH)).astype(np.float32)
    types = table[:2] * 0.3
    tensors = named({**w, "positions": table}, BERT)
    tensors["embeddings.token_type_embeddings.weight"] = types
    kind = "bert" if padding is None else "roberta"
    settings = {**kit.SIZES, "hidden_act": "relu" if padding else "gelu", "layer_norm_eps": 1e-3}
    kit.save(tmp_path, {"model_type": kind, "pad_token_id": 1, **settings}, tensors)
    ids = np.random.default_rng(2).integers(3, kit.VOCABULARY, (2, 7))
    mask, kinds = np.ones_like(ids), np.zeros_like(ids)
    ids[1, 5:], mask[1, 5:], kinds[:, 3:] = 1, 0, 1
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
    with narrowpass.load(tmp_path, "reference", pipeline="", cache=False) as program:
        found = program.run(feeds)["last_hidden_state"]
    # RoBERTa's positions begin behind the number of its padding.
    first = 0 if padding is None else padding + 1
    for row, count in ((0, 7), (1, 5)):
        given = {**w, "positions": table[first : first + count] + types[kinds[row, :count]]}
        kept = kit.Model(
            given, kind="layer", epsilon=1e-3, activation="relu" if padding else "gelu"
        ).hidden(ids[row, :count], mask[row, :count] == 1)
        np.testing.assert_allclose(found[row, :count], kept, rtol=0, atol=2e-5)
