"""Decoders compute what PyTorch computes from the same folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

import narrowpass

SIZES = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LOCAL = ["full_attention", "sliding_attention", "sliding_attention"]
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

CASES = {
    "llama": ("LlamaConfig", GROUPED),
    "llama-biases": ("LlamaConfig", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaConfig", {**GROUPED, "tie_word_embeddings": True}),
    "llama-head": ("LlamaConfig", {**SIZES, "head_dim": 20}),
    "llama3-scaling": ("LlamaConfig", {**GROUPED, "rope_parameters": LLAMA3}),
    "linear-scaling": ("LlamaConfig", {**GROUPED, "rope_parameters": LINEAR}),
    "yarn-scaling": ("LlamaConfig", {**GROUPED, "rope_parameters": YARN}),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "granite": (
        "GraniteConfig",
        {
            **GROUPED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "smollm3": ("SmolLM3Config", {**GROUPED, "no_rope_layers": [1, 0, 1]}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2-local": (
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "layer_types": LOCAL},
    ),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 16}),
    "gemma": ("GemmaConfig", {**GROUPED, "head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {
            **GROUPED,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **GROUPED,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 4,
            "sliding_window_pattern": 3,
        },
    ),
    "phi": ("PhiConfig", GROUPED),
    "phi3": ("Phi3Config", {**GROUPED, "sliding_window": 6}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 90, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128},
    ),
    "gpt-neox": ("GPTNeoXConfig", {**SIZES, "rotary_pct": 0.5}),
    "gpt-neox-serial": (
        "GPTNeoXConfig",
        {**SIZES, "rotary_pct": 0.5, "use_parallel_residual": False},
    ),
}


def differences(model, program, prompt, steps):
    """Return the largest error of logits of a prefill and of decode steps of 1 and 3 tokens."""
    import torch

    ids = np.random.default_rng(0).integers(3, 90, (1, prompt + 4 * steps))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    session = program.session()
    first = session.run({"input_ids": ids[:, :prompt]}, "prefill")["logits"]
    assert first.shape == (1, 1, 90)
    errors = [np.abs(first[0, 0] - expected[0, prompt - 1]).max()]
    place = prompt
    for count in (1, 3) * steps:
        given = {"input_ids": ids[:, place : place + count]}
        found = session.run(given, "decode")["logits"]
        errors.append(np.abs(found[0] - expected[0, place : place + count]).max())
        place += count
    assert place == ids.shape[1]
    return max(errors), np.abs(expected).max()


@pytest.mark.parametrize("name", CASES)
def test_logits_of_prefill_and_decode(name, save, backend):
    transformers = pytest.importorskip("transformers")
    kind, settings = CASES[name]
    model, folder = save(getattr(transformers, kind)(**settings))
    with narrowpass.load(folder, backend, pipeline="", cache=False) as program:
        assert [str(state) for state in program.states][:1] == [
            "past_key_values.0.key=present.0.key@2"
        ]
        error, largest = differences(model, program, prompt=9, steps=3)
    # Additions of at most 64 multiplications in float32 in another order, over at most four layers.
    assert error <= 2e-5 * max(1.0, largest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_are_converted(dtype, save, backend):
    transformers = pytest.importorskip("transformers")
    model, folder = save(transformers.LlamaConfig(**GROUPED), dtype=dtype)
    with narrowpass.load(folder, backend, pipeline="", cache=False) as program:
        error, largest = differences(model, program, prompt=5, steps=1)
    assert error <= 2e-5 * max(1.0, largest)


def test_shards(save, backend):
    transformers = pytest.importorskip("transformers")
    model, folder = save(transformers.LlamaConfig(**GROUPED))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    with narrowpass.load(folder, backend, pipeline="", cache=False) as program:
        error, largest = differences(model, program, prompt=5, steps=1)
    assert error <= 2e-5 * max(1.0, largest)


def test_older_files_say_rotary_positions_otherwise(save, backend):
    transformers = pytest.importorskip("transformers")
    model, folder = save(transformers.LlamaConfig(**{**GROUPED, "rope_parameters": LLAMA3}))
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    given = raw.pop("rope_parameters")
    raw["rope_theta"] = given.pop("rope_theta")
    raw["rope_scaling"] = given
    file.write_text(json.dumps(raw))
    with narrowpass.load(folder, backend, pipeline="", cache=False) as program:
        error, largest = differences(model, program, prompt=5, steps=2)
    assert error <= 2e-5 * max(1.0, largest)


def test_weights_are_mapped_and_shared(save, tmp_path):
    from narrowpass_huggingface.importer import FolderImporter
    from narrowpass_ir.io import MappedTensor

    transformers = pytest.importorskip("transformers")
    _, folder = save(transformers.Phi3Config(**GROUPED))
    (folder / "tokenizer.json").write_text("{}")
    found = FolderImporter().load(str(folder))
    prefill, decode = (found.methods[name].graph.initializers for name in ("prefill", "decode"))
    names = [name for name in prefill if not name.startswith("const.")]
    assert len(names) == 3 + 3 * 9
    for name in names:
        assert isinstance(prefill[name].const_value, MappedTensor)
        assert prefill[name].const_value is decode[name].const_value
    assert set(found.assets) == {"config.json", "generation_config.json", "tokenizer.json"}
    bundle = narrowpass.build(folder, "", tmp_path / "out.narrow", target="reference")
    assert (tmp_path / "out.narrow" / "tokenizer.json").read_text() == "{}"
    # Norms have fewer than 256 bytes, and stay in the ONNX files.
    assert set(bundle.data) >= {name for name in names if "norm" not in name}


def test_transformers_reads_what_lies_beside_the_models(save, tmp_path):
    """The bundle's folder, and what `convert` writes, have the configuration and the tokenizer."""
    from click.testing import CliRunner
    from tokenizers import Tokenizer, models, pre_tokenizers

    from narrowpass.cli import app

    transformers = pytest.importorskip("transformers")
    _, folder = save(transformers.Phi3Config(**GROUPED))
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "narrow": 2, "pass": 3}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    own = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>"
    )
    own.save_pretrained(folder)
    bundle, converted = tmp_path / "out.narrow", tmp_path / "converted"
    narrowpass.build(folder, "", bundle, target="reference")
    done = CliRunner().invoke(app, ["convert", str(bundle), str(converted)])
    assert done.exit_code == 0, done.output
    for place in (bundle, converted):
        config = transformers.AutoConfig.from_pretrained(place)
        assert (config.model_type, config.hidden_size) == ("phi3", GROUPED["hidden_size"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        assert tokenizer("narrow pass wide").input_ids == [2, 3, 0]
        assert tokenizer.bos_token == "<s>"
    assert {"prefill.onnx", "decode.onnx"} <= {path.name for path in converted.iterdir()}
