"""Writes small GGUF files with random weights, and computes what their models compute in numpy."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

WIDTH, HIDDEN, HEADS, GROUPS, HEAD, LAYERS, VOCABULARY = 256, 512, 4, 2, 64, 2, 40
BASE, EPSILON = 10_000.0, 1e-5
TOKENS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "ab", "abc", "Ġ", "Ġa", "é"]
TOKENS += [f"<extra{i}>" for i in range(VOCABULARY - len(TOKENS))]


def weights(seed=0):
    """Return float32 weights by the names of GGUF."""
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    found = {"token_embd.weight": matrix(VOCABULARY, WIDTH) * 16}
    for layer in range(LAYERS):
        found |= {
            f"blk.{layer}.attn_q.weight": matrix(HEADS * HEAD, WIDTH),
            f"blk.{layer}.attn_k.weight": matrix(GROUPS * HEAD, WIDTH),
            f"blk.{layer}.attn_v.weight": matrix(GROUPS * HEAD, WIDTH),
            f"blk.{layer}.attn_output.weight": matrix(WIDTH, HEADS * HEAD),
            f"blk.{layer}.ffn_gate.weight": matrix(HIDDEN, WIDTH),
            f"blk.{layer}.ffn_up.weight": matrix(HIDDEN, WIDTH),
            f"blk.{layer}.ffn_down.weight": matrix(WIDTH, HIDDEN),
        }
        for name in ("attn_norm", "ffn_norm"):
            norm = 1 + rng.standard_normal(WIDTH) * 0.1
            found[f"blk.{layer}.{name}.weight"] = norm.astype(np.float32)
    norm = 1 + rng.standard_normal(WIDTH) * 0.1
    return found | {"output_norm.weight": norm.astype(np.float32)}


def random_k(kind, rows, columns, rng):
    """Return bytes of a type of K, which the library does not quantize to: random ones."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, columns // elements, size), np.uint8)
    # Scales so that values are of the size that weights of a matmul have.
    scale = np.float16(columns**-0.5 / (1000 if kind == Kind.Q6_K else 250))
    numbers = np.full((*raw.shape[:2], 2), scale)
    numbers[..., 1] *= 8
    halves = numbers.astype("<f2").view(np.uint8).reshape(*raw.shape[:2], 4)
    if kind == Kind.Q6_K:
        raw[:, :, -2:] = halves[:, :, :2]
    elif kind == Kind.Q2_K:
        raw[:, :, -4:] = halves
    else:
        raw[:, :, :4] = halves
    return raw.reshape(rows, -1)


def write(path, kind=Kind.F32, architecture="llama", table=None, given=None, **fields):
    """Write a file whose matrices are of a type; return its weights as the library reads them."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_merges(["a b", "ab c", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for key, value in fields.items():
        writer.add_uint32(key.replace("__", "."), value)
    read, rng = {}, np.random.default_rng(1)
    for name, wide in (weights() if given is None else given).items():
        chosen = (table or kind) if name == "token_embd.weight" else kind
        if wide.ndim == 1 or chosen == Kind.F32:
            writer.add_tensor(name, wide)
            read[name] = wide
            continue
        try:
            raw = gguf.quantize(wide, chosen)
        except NotImplementedError:
            raw = random_k(chosen, *wide.shape, rng)
        read[name] = gguf.dequantize(raw, chosen).astype(np.float32)
        writer.add_tensor(name, raw, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


def logits(w, ids):
    """Return the logits of a llama, float64 [S, V], whose q and k are permuted as GGUF has them."""
    w = {name: value.astype(np.float64) for name, value in w.items()}

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * scale

    angles = np.outer(np.arange(len(ids)), BASE ** (-np.arange(0, HEAD, 2) / HEAD))
    turns = np.exp(1j * angles)[:, None]

    def rotate(x):
        pairs = x[..., ::2] + 1j * x[..., 1::2]
        turned = pairs * turns
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for layer in range(LAYERS):
        part = {
            name.removeprefix(f"blk.{layer}.").removesuffix(".weight"): value
            for name, value in w.items()
            if name.startswith(f"blk.{layer}.")
        }
        rows = norm(x, part["attn_norm"])
        q = rotate((rows @ part["attn_q"].T).reshape(len(ids), HEADS, HEAD))
        k = rotate((rows @ part["attn_k"].T).reshape(len(ids), GROUPS, HEAD))
        v = (rows @ part["attn_v"].T).reshape(len(ids), GROUPS, HEAD)
        k, v = (np.repeat(value, HEADS // GROUPS, axis=1) for value in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD)
        scores += np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        found = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        x = x + found.reshape(len(ids), -1) @ part["attn_output"].T
        rows = norm(x, part["ffn_norm"])
        gate = rows @ part["ffn_gate"].T
        inner = gate / (1 + np.exp(-gate)) * (rows @ part["ffn_up"].T)
        x = x + inner @ part["ffn_down"].T
    return norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
