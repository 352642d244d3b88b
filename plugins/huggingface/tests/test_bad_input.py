"""Folders that are damaged, or that hold something else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from narrowpass_huggingface.importer import FolderImporter
from narrowpass_ir.errors import ModelError

LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SHAPES = {
    "embed_tokens": (10, 8),
    "norm": (8,),
    "layers.0.input_layernorm": (8,),
    "layers.0.post_attention_layernorm": (8,),
    **{f"layers.0.self_attn.{name}_proj": (8, 8) for name in "qkvo"},
    "layers.0.mlp.gate_proj": (12, 8),
    "layers.0.mlp.up_proj": (12, 8),
    "layers.0.mlp.down_proj": (8, 12),
}
NAME = "model.safetensors"


def tensors():
    rng = np.random.default_rng(0)
    return {
        f"model.{name}.weight": rng.standard_normal(shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file(tensors(), tmp_path / "model.safetensors")
    return tmp_path


def load(folder):
    return FolderImporter().load(str(folder))


def test_the_folder_is_one(folder):
    assert FolderImporter().probe(str(folder))
    assert set(load(folder).methods) == {"prefill", "decode"}
    assert not FolderImporter().probe(str(folder / "config.json"))
    assert not FolderImporter().probe("a\0b")
    (folder / "manifest.json").write_text("{}")
    assert not FolderImporter().probe(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported decoders are"),
        ({"model_type": None}, "has no model_type"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"hidden_size": -8}, "hidden_size is -8"),
        ({"num_attention_heads": None}, "lacks num_attention_heads"),
        ({"num_key_value_heads": 3}, "2 heads cannot share 3"),
        ({"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope scaling 'longr"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "lacks or has a wrong parameter"),
        ({"rope_theta": "fast"}, "rope_theta is 'fast'"),
        ({"tie_word_embeddings": 3}, "neither true nor false"),
        ({"num_hidden_layers": 2**31 - 1}, "and there are no more than 11 tensors"),
        ({"num_hidden_layers": 2}, "lacks the tensor 'model.layers.1."),
        ({"quantization_config": {"bits": 4}}, "are quantized"),
        ({"layer_types": ["odd"]}, "layer_types .'odd'. are not supported"),
        ({"tie_word_embeddings": False}, "lacks the tensor 'lm_head.weight'"),
        ({"vocab_size": 99}, r"weight 'embedding' is \[10, 8\], and .* needs \[99, 8\]"),
        ({"intermediate_size": 16}, r"weight '0.up' is \[12, 8\], and .* needs \[16, 8\]"),
        ({"query_pre_attn_scalar": 0}, "has a value that is not supported"),
        ({"query_pre_attn_scalar": -4}, "score_scale is .* must be a finite number"),
        ({"model_type": "granite", "logits_scaling": 0}, "has a value that is not supported"),
        ({"hidden_act": ["silu"]}, "is not supported; supported are"),
        ({"rope_theta": 10**400}, "rope_theta is larger than a float"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is larger than a float"),
        ({"rope_parameters": {"rope_theta": 1e-300}}, "frequencies are not finite"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "frequencies are not finite"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor is 2.0, not 0 to 1"),
        ({"head_dim": 2**40}, "head_dim is 1099511627776"),
        ({"model_type": "mistral", "sliding_window": -5}, "sliding_window is -5"),
        ({"model_type": "mistral", "sliding_window": 2**70}, "sliding_window is 1180"),
    ],
)
def test_settings_that_are_refused(folder, change, message):
    (folder / "config.json").write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(ModelError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_no_json(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is no JSON"):
        load(folder)


def test_no_safetensors(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="save_pretrained"):
        load(folder)


def test_more_tensors_than_the_architecture_has(folder):
    given = {**tensors(), "model.layers.0.self_attn.sinks": np.ones(2, np.float32)}
    save_file(given, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"such as 'model\.layers\.0\.self_attn\.sinks'"):
        load(folder)


@pytest.mark.parametrize("shape", [(1,), (7,), (8, 8)])
def test_a_norm_that_would_broadcast(folder, shape):
    save_file({**tensors(), "model.norm.weight": np.ones(shape, np.float32)}, folder / NAME)
    with pytest.raises(ModelError, match=r"weight 'norm' is .* needs \[8\]"):
        load(folder)


def test_a_tensor_of_integers(folder):
    given = {**tensors(), "model.norm.weight": np.ones(8, np.int64)}
    save_file(given, folder / "model.safetensors")
    with pytest.raises(ModelError, match="is int64, and no float"):
        load(folder)


@pytest.mark.parametrize("size", [0, 4, 8, 100, 1500, 2000])
def test_a_file_that_is_cut_short(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(folder)


def test_an_index_that_leads_out_of_the_folder(folder):
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside of the folder"):
        load(folder)


def test_headers_of_random_bytes_do_not_crash(folder):
    file = folder / "model.safetensors"
    whole = bytearray(file.read_bytes())
    length = int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    for _ in range(60):
        broken = bytearray(whole)
        broken[int(rng.integers(0, 8 + length))] = int(rng.integers(0, 256))
        file.write_bytes(broken)
        try:
            load(folder)
        except ModelError:
            continue
