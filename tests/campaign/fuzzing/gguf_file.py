"""A GGUF file of a decoder of one layer, written by hand."""

from __future__ import annotations

import struct

import numpy as np

WIDTH, HIDDEN, WORDS = 32, 64, 8
_TYPES = {int: (4, "<I"), float: (6, "<f")}


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        parts = [_value(item) for item in value]
        return (
            struct.pack("<I", 9)
            + parts[0][:4]
            + struct.pack("<Q", len(value))
            + b"".join(part[4:] for part in parts)
        )
    code, form = _TYPES[type(value)]
    return struct.pack("<I", code) + struct.pack(form, value)


def small_file() -> bytes:
    """Return the file's bytes."""
    shapes = {
        "token_embd.weight": (WORDS, WIDTH),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH, WIDTH),
        "blk.0.attn_v.weight": (WIDTH, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "output_norm.weight": (WIDTH,),
    }
    fields: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 16,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": WIDTH // 2,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "abc"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields))
    for key, value in fields.items():
        head += _text(key) + _value(value)
    data = b""
    for name, shape in shapes.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(shape))
        head += struct.pack("<IQ", 0, len(data))
        data += np.ones(shape, "<f4").tobytes()
    return head + b"\0" * (-len(head) % 32) + data
