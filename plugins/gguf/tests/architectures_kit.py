"""Small GGUF files of each architecture, with the fields and tensors of llama.cpp's converter."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import gguf_kit as kit
import numpy as np

WIDTH, HIDDEN, HEADS, GROUPS, HEAD, VOCABULARY = 64, 96, 4, 2, 32, kit.VOCABULARY
EPSILON, BASE, SPAN = 1e-6, 1_000_000.0, 5
GEMMA = ("gemma", "gemma2", "gemma3")


@dataclass(frozen=True)
class Variant:
    """What a file says beyond its architecture.

    Attributes:
        architecture: of the file.
        layers: how many.
        span: positions that layers with a span see; 0 where the file has none.
        head: elements of a head; those that do not follow from the width need fields.
        local_base: ``rope.freq_base_swa``; 0 where the file lacks it.
        pattern: ``attention.sliding_window_pattern``; None where the file lacks it.
        yarn: factor of YaRN; 0 for none.
        joined: whether q, k and v are one tensor.
    """

    architecture: str
    layers: int = 2
    span: int = 0
    head: int = HEAD
    local_base: float = 0.0
    pattern: int | list[bool] | None = None
    yarn: float = 0.0
    joined: bool = False

    @property
    def gemma(self) -> bool:
        return self.architecture in GEMMA


def weights(variant: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 weights by the names of GGUF; norms of Gemma have their 1 added."""
    rng = np.random.default_rng(seed)
    kind, head = variant.architecture, variant.head

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(size: int, centre: float = 1.0) -> np.ndarray:
        return (centre + rng.standard_normal(size) * 0.2).astype(np.float32)

    # Gemma multiplies embeddings with the root of the width, and its head is tied to them.
    found = {"token_embd.weight": matrix(VOCABULARY, WIDTH) * (1 if variant.gemma else 8)}
    if not variant.gemma:
        found["output.weight"] = matrix(VOCABULARY, WIDTH) * 4
    for layer in range(variant.layers):
        part = {"attn_norm.weight": vector(WIDTH), "ffn_norm.weight": vector(WIDTH)}
        part["attn_output.weight"] = matrix(WIDTH, HEADS * head)
        part["ffn_down.weight"] = matrix(WIDTH, HIDDEN)
        if kind == "phi3":
            part["attn_qkv.weight"] = matrix((HEADS + 2 * GROUPS) * head, WIDTH) * 2
            part["ffn_up.weight"] = matrix(2 * HIDDEN, WIDTH)
        else:
            for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
                part[f"attn_{name}.weight"] = matrix(heads * head, WIDTH) * 2
                if kind == "qwen2":
                    part[f"attn_{name}.bias"] = vector(heads * head, 0.0)
            part["ffn_gate.weight"] = matrix(HIDDEN, WIDTH)
            part["ffn_up.weight"] = matrix(HIDDEN, WIDTH)
        if variant.joined:
            for suffix in ("weight", "bias"):
                parts = [part.pop(f"attn_{name}.{suffix}", None) for name in "qkv"]
                if all(each is not None for each in parts):
                    part[f"attn_qkv.{suffix}"] = np.concatenate(parts)
        if kind in ("qwen3", "gemma3"):
            part |= {f"attn_{name}_norm.weight": vector(head) for name in "qk"}
        if kind in ("gemma2", "gemma3"):
            part["post_attention_norm.weight"] = vector(WIDTH)
            part["post_ffw_norm.weight"] = vector(WIDTH)
        found |= {f"blk.{layer}.{name}": value for name, value in part.items()}
    return found | {"output_norm.weight": vector(WIDTH)}


def write(path, variant: Variant, **fields: object) -> None:
    """Write a file, with further fields of the architecture: numbers, or a bool."""
    kind = variant.architecture
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(variant.layers)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if kind in ("qwen2", "qwen3", "gemma3", "phi3"):
        writer.add_rope_freq_base(BASE)
    if kind in ("qwen3", *GEMMA):
        writer.add_key_length(variant.head)
        writer.add_value_length(variant.head)
    if kind == "phi3":
        writer.add_rope_dimension_count(variant.head)
        writer.add_rope_scaling_orig_ctx_len(256)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(5.0)
        writer.add_final_logit_softcapping(3.0)
    if variant.span or kind == "phi3":  # of Phi, the converter writes 0 for none
        writer.add_sliding_window(variant.span)
    if variant.local_base:
        # By its key: the oldest `gguf` has no method for it, nor for the pattern.
        writer.add_float32(f"{kind}.rope.freq_base_swa", variant.local_base)
    if variant.pattern is not None:
        key = f"{kind}.attention.sliding_window_pattern"
        if isinstance(variant.pattern, int):
            writer.add_uint32(key, variant.pattern)
        else:
            writer.add_array(key, variant.pattern)
    if variant.yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(variant.yarn)
        writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*kit.TOKENS[:-1], "Ċ"]
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_merges(["a b", "ab c", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in fields.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_float32
        add(f"{kind}.{key.replace('__', '.')}", value)
    for name, value in weights(variant).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
