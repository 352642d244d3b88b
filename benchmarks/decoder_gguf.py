"""Writes a decoder of the sizes of ``decoder.py`` as a GGUF file, for llama.cpp to be timed with.

    python benchmarks/decoder_gguf.py FOLDER/SIZE.gguf --size 100m|135m|1b

Weights are random: Q4_0 in the layers, as ``int4{block=32}`` stores them (4.5 bits), Q8_0 in the
embedding, which is the head too. There is no vocabulary, so that the file can be timed and no text
generated. Needs the package ``gguf``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import decoder
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

BLOCK = 32
"""Weights that share a scale of float16, in both types."""
SCALE = 0.01

Array = np.ndarray[Any, Any]


def blocks(rng: np.random.Generator, outputs: int, inputs: int, bits: int) -> Array:
    """Return random blocks of Q4_0 or Q8_0, uint8 [outputs, bytes of a row]."""
    count, size = outputs * inputs // BLOCK, BLOCK * bits // 8
    found = np.empty((count, 2 + size), np.uint8)
    found[:, :2] = np.array([SCALE], np.float16).view(np.uint8)
    found[:, 2:] = rng.integers(0, 256, (count, size), np.uint8)
    return found.reshape(outputs, -1)


def write(path: Path, size: str) -> None:
    """Write a decoder of a size."""
    shape, rng = decoder.SIZES[size], np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_rope_dimension_count(shape.head)
    writer.add_layer_norm_rms_eps(1e-5)

    def matrix(name: str, outputs: int, inputs: int, bits: int = 4) -> None:
        kind = GGMLQuantizationType.Q4_0 if bits == 4 else GGMLQuantizationType.Q8_0
        writer.add_tensor(name, blocks(rng, outputs, inputs, bits), raw_dtype=kind)

    matrix("token_embd.weight", shape.vocabulary, shape.width, 8)
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    inner = shape.groups * shape.head
    for layer in range(shape.layers):
        name = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}.{norm}.weight", np.ones(shape.width, np.float32))
        matrix(f"{name}.attn_q.weight", shape.width, shape.width)
        matrix(f"{name}.attn_k.weight", inner, shape.width)
        matrix(f"{name}.attn_v.weight", inner, shape.width)
        matrix(f"{name}.attn_output.weight", shape.width, shape.width)
        matrix(f"{name}.ffn_gate.weight", shape.hidden, shape.width)
        matrix(f"{name}.ffn_up.weight", shape.hidden, shape.width)
        matrix(f"{name}.ffn_down.weight", shape.width, shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write a decoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=decoder.SIZES, default="100m")
    arguments = parser.parse_args()
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write(arguments.path, arguments.size)


if __name__ == "__main__":
    main()
