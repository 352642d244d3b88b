"""A GGUF file of a decoder of one layer, written by hand, and changed."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzzing.mutation import NUMBERS
from fuzzing.structure import TEXTS

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


@dataclass
class Parts:
    """What a file says.

    Attributes:
        version: of the format.
        fields: keys and values.
        tensors: of each its name, shape, type, and offset in the data.
        data: of the tensors.
        counts: added to the numbers of tensors and fields in the header.
        alignment: of the data.
    """

    version: int
    fields: list[tuple[str, Any]]
    tensors: list[tuple[str, tuple[int, ...], int, int]]
    data: bytes
    counts: tuple[int, int] = (0, 0)
    alignment: int = 32

    def write(self) -> bytes:
        """Return the file's bytes."""
        numbers = len(self.tensors) + self.counts[0], len(self.fields) + self.counts[1]
        head = b"GGUF" + struct.pack("<I", self.version % 2**32)
        head += b"".join(_whole(number) for number in numbers)
        head += b"".join(_text(key) + _value(value) for key, value in self.fields)
        for name, shape, kind, offset in self.tensors:
            head += _text(name) + struct.pack("<I", len(shape))
            head += b"".join(_whole(size) for size in reversed(shape))
            head += struct.pack("<I", kind % 2**32) + _whole(offset)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


def _whole(value: int) -> bytes:
    return struct.pack("<Q", value % 2**64)


def small_parts() -> Parts:
    """Return a decoder of one layer."""
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
    tensors, data = [], b""
    for name, shape in shapes.items():
        tensors.append((name, shape, 0, len(data)))
        data += np.ones(shape, "<f4").tobytes()
    return Parts(3, list(fields.items()), tensors, data)


def small_file() -> bytes:
    """Return its bytes."""
    return small_parts().write()


def changed_file(choice: random.Random, data: bytes) -> bytes:
    """Return the file with other fields, shapes, types, offsets or numbers of them."""
    del data
    parts = small_parts()
    for _ in range(choice.choice((1, 1, 2, 4))):
        kind = choice.randrange(10)
        if kind < 5:
            _change_field(choice, parts.fields)
        elif kind < 8:
            _change_tensor(choice, parts.tensors)
        elif kind == 8:
            parts.data = choice.choice((parts.data[:-4], parts.data[:99], b"", parts.data + b"\0"))
        else:
            parts.counts = choice.choice(((1, 0), (0, 1), (-1, 0), (0, -1), (1000, 0), (0, 1000)))
            parts.version = choice.choice((3, 2, 1, 4, 0))
    return parts.write()


def _change_field(choice: random.Random, fields: list[tuple[str, Any]]) -> None:
    at = choice.randrange(len(fields))
    key, value = fields[at]
    kind = choice.randrange(8)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.insert(at, fields[at])
    elif kind == 2:
        fields[at] = (key, choice.choice(fields)[1])
    elif isinstance(value, int):
        fields[at] = (key, choice.choice((value + 1, value - 1, *NUMBERS)) % 2**32)
    elif isinstance(value, float):
        values = (0.0, -1.0, float("nan"), float("inf"), 1e-38)
        fields[at] = (key, choice.choice(values))
    elif isinstance(value, str):
        fields[at] = (key, choice.choice((*TEXTS, "qwen2", "gemma3", "bert", "phi3", "llama")))
    else:
        fields[at] = (key, choice.choice((value[:-1] or value, value * 3, value[:1], value[::-1])))


def _change_tensor(
    choice: random.Random, tensors: list[tuple[str, tuple[int, ...], int, int]]
) -> None:
    at = choice.randrange(len(tensors))
    name, shape, kind, offset = tensors[at]
    what = choice.randrange(6)
    if what == 0:
        del tensors[at]
        tensors[:] = tensors or [(name, shape, kind, offset)]
    elif what == 1:
        name = choice.choice((*TEXTS, choice.choice(tensors)[0], "rope_freqs.weight"))
    elif what == 2:
        sizes = [choice.choice((size, size + 1, *NUMBERS)) for size in shape]
        shape = tuple(choice.choice((sizes, sizes[:-1], [*sizes, 1], sizes * 3)))
    elif what == 3:
        kind = choice.choice((*range(40), 2**31, 2**32 - 1))
    else:
        offset = choice.choice((offset + 4, offset + 32, offset - 32, *NUMBERS))
    if what:
        tensors[at] = (name, shape, kind, offset)
