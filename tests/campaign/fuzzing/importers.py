"""Files of other formats: GGUF, folders of Hugging Face, tokenizers."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from fuzzing.gguf_file import changed_file, small_file
from fuzzing.growth import grown_document
from fuzzing.structure import Change, changed_document
from fuzzing.target import Target

_LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    "eos_token_id": [2, 3],
    "torch_dtype": "float32",
}
_GEMMA = {
    **{key: value for key, value in _LLAMA.items() if key != "rope_parameters"},
    "model_type": "gemma2",
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "sliding_window": 8,
    "layer_types": ["sliding_attention"],
    "attn_logit_softcapping": 50.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "hidden_activation": "gelu_pytorch_tanh",
}
_LINEAR = {**_GEMMA, "rope_parameters": _LLAMA["rope_parameters"]}
_SHAPES = {
    "embed_tokens": (10, 8),
    "norm": (8,),
    "layers.0.input_layernorm": (8,),
    "layers.0.post_attention_layernorm": (8,),
    "layers.0.pre_feedforward_layernorm": (8,),
    "layers.0.post_feedforward_layernorm": (8,),
    **{f"layers.0.self_attn.{name}_proj": (8, 8) for name in "qo"},
    **{f"layers.0.self_attn.{name}_proj": (4, 8) for name in "kv"},
    "layers.0.mlp.gate_proj": (12, 8),
    "layers.0.mlp.up_proj": (12, 8),
    "layers.0.mlp.down_proj": (8, 12),
}
_GENERATION = {"eos_token_id": 2, "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9}
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Gguf(Target):
    """GGUF files."""

    name = "gguf"
    share = 8

    def seeds(self) -> list[bytes]:
        return [small_file()]

    def changes(self) -> Change:
        return changed_file

    def read(self, data: bytes) -> None:
        from narrowpass_gguf.importer import GgufImporter

        path = self.folder / "m.gguf"
        path.write_bytes(data)
        GgufImporter().load(str(path))


class _OneOf(Target):
    """Several files, of which an input replaces one: its first byte says which."""

    files: dict[str, list[bytes]]
    """For each name what is valid; the first is what stands there beside others."""

    @abstractmethod
    def valid(self) -> dict[str, list[bytes]]:
        """Return the files."""

    def seeds(self) -> list[bytes]:
        self.files = self.valid()
        return [
            bytes([place]) + data
            for place, kinds in enumerate(self.files.values())
            for data in kinds
        ]

    def changes(self) -> Change:
        def changed(choice: random.Random, data: bytes) -> bytes:
            return data[:1] + changed_document(choice, data[1:])

        return changed

    @staticmethod
    def grow(seed: bytes, size: int) -> Iterator[bytes]:
        return (seed[:1] + data for data in grown_document(seed[1:], size))

    def split(self, data: bytes) -> tuple[str, bytes]:
        """Return the name of the file that is replaced, and by what."""
        return list(self.files)[(data or b"\0")[0] % len(self.files)], data[1:]


class Folders(_OneOf):
    """Folders of Hugging Face: their documents, and headers of their safetensors."""

    name = "huggingface"
    share = 20

    def valid(self) -> dict[str, list[bytes]]:
        header, parts, at = dict[str, Any](), [], 0
        rng = np.random.default_rng(0)
        for name, shape in _SHAPES.items():
            data = rng.standard_normal(shape).astype("<f4").tobytes()
            entry = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
            header[f"model.{name}.weight"] = entry
            at += len(data)
            parts.append(data)
        self.payload = b"".join(parts)
        index = {"metadata": {"total_size": at}, "weight_map": dict.fromkeys(header, "a")}
        (self.folder.parent / "secret.bin").write_bytes(b"s" * 200)
        found = {
            "config.json": [json.dumps(each).encode() for each in (_GEMMA, _LINEAR)],
            "model.safetensors.index.json": [json.dumps(index).encode()],
            "a": [json.dumps(header).encode()],
            "generation_config.json": [json.dumps(_GENERATION).encode()],
        }
        for name, (data, *_) in found.items():
            (self.folder / name).write_bytes(self._file(name, data))
        return found

    def _file(self, name: str, data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data + self.payload if name == "a" else data

    def read(self, data: bytes) -> None:
        from narrowpass_huggingface.importer import FolderImporter

        name, content = self.split(data)
        path = self.folder / name
        path.write_bytes(self._file(name, content))
        try:
            found = FolderImporter().load(str(self.folder))
            for method in found.methods.values():
                for value in method.graph.initializers.values():
                    if value.const_value is not None and b"ssss" in value.const_value.tobytes():
                        raise AssertionError("a file outside of the folder was read")
        finally:
            path.write_bytes(self._file(name, self.files[name][0]))


class Tokenizers(_OneOf):
    """The files of a tokenizer; ``tokenizer.json`` is parsed by the library of that name."""

    name = "tokenizer"
    share = 40

    def valid(self) -> dict[str, list[bytes]]:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

        letters = {letter: index for index, letter in enumerate("<abehct ")}
        pairs = tokenizers.Tokenizer(
            models.BPE(
                {**letters, "th": 8, "the": 9}, [("t", "h"), ("th", "e")], byte_fallback=True
            )
        )
        pairs.decoder = decoders.ByteLevel()
        pairs.add_special_tokens(["<s>", "</s>"])
        pairs.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 10)]
        )
        words = tokenizers.Tokenizer(
            models.WordPiece({"[UNK]": 0, "the": 1, "c": 2, "##at": 3}, unk_token="[UNK]")
        )
        words.normalizer = normalizers.BertNormalizer()
        words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        unigram = tokenizers.Tokenizer(models.Unigram([("<u>", 0.0), ("the", -1.0)], 0))
        unigram.pre_tokenizer = pre_tokenizers.Metaspace()
        settings = {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "chat_template": [{"name": "default", "template": _TEMPLATE}],
        }
        return {
            "tokenizer.json": [each.to_str().encode() for each in (pairs, words, unigram)],
            "tokenizer_config.json": [json.dumps(settings).encode()],
            "generation_config.json": [json.dumps(_GENERATION).encode()],
            "config.json": [json.dumps(_LLAMA).encode()],
        }

    def read(self, data: bytes) -> None:
        from narrowpass_generate import Tokenizer

        name, content = self.split(data)
        files = {each: kinds[0] for each, kinds in self.files.items()}
        tokenizer = Tokenizer({**files, name: content})
        tokenizer.decode([*tokenizer.encode("the cat <s>"), 1, 2**31])
        if tokenizer.has_template:
            tokenizer.encode_chat([{"role": "user", "content": "the cat?"}])
