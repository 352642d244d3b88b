"""Files of each architecture compute what llama.cpp computes from them."""

from __future__ import annotations

import architectures_kit as kit
import numpy as np
import pytest
from architectures_kit import Variant

import narrowpass
from narrowpass_gguf.importer import GgufImporter
from narrowpass_ir.errors import ModelError

IDS = np.random.default_rng(3).integers(3, kit.VOCABULARY, 24)
VARIANTS = {
    "qwen2": Variant("qwen2", head=16),
    "qwen2-yarn": Variant("qwen2", head=16, yarn=4.0),
    "qwen2-joined": Variant("qwen2", head=16, joined=True),
    "qwen3": Variant("qwen3"),
    "gemma": Variant("gemma"),
    "gemma2": Variant("gemma2", layers=3, span=kit.SPAN),
    "gemma3": Variant("gemma3", layers=7, span=kit.SPAN),
    "gemma3-local-base": Variant("gemma3", layers=7, span=kit.SPAN, local_base=50.0),
    "gemma3-pattern": Variant("gemma3", layers=4, span=kit.SPAN, pattern=2),
    "gemma3-listed": Variant("gemma3", layers=3, span=kit.SPAN, pattern=[False, True, True]),
    "phi3": Variant("phi3", head=16),
}


def ours(path, backend):
    """Return the logits of a prompt of 7 tokens and of the others, in a session."""
    with narrowpass.load(path, backend, pipeline="", cache=False) as program:
        session = program.session()
        found = []
        for start, end in ((0, 7), (7, 8), (8, len(IDS))):
            given = {"input_ids": IDS[None, start:end]}
            found.append(session.run(given, "decode")["logits"][0])
    return np.concatenate(found)


def theirs(path):
    """Return llama.cpp's logits, computed with float32 weights and caches."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(
        str(path),
        n_ctx=256,
        n_threads=1,
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    model.eval(IDS.tolist())
    found = model.scores[: len(IDS)].astype(np.float64)
    model.close()
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_llama_cpp(name, backend, tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, VARIANTS[name])
    expected = theirs(path)
    found = ours(path, backend)
    # llama.cpp looks up gelu, where there is one, by its argument in float16: 2^-11 of it. All else
    # is float32, in another order.
    share = 2e-3 if VARIANTS[name].gemma else 2e-5
    np.testing.assert_allclose(found, expected, atol=share * np.abs(expected).max(), rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_the_span_of_phi3(backend, tmp_path):
    """llama.cpp ignores it; transformers does not."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    variant = Variant("phi3", head=16, span=kit.SPAN)
    path = tmp_path / "model.gguf"
    kit.write(path, variant)
    config = transformers.Phi3Config(
        vocab_size=kit.VOCABULARY,
        hidden_size=kit.WIDTH,
        intermediate_size=kit.HIDDEN,
        num_hidden_layers=variant.layers,
        num_attention_heads=kit.HEADS,
        num_key_value_heads=kit.GROUPS,
        rms_norm_eps=kit.EPSILON,
        rope_theta=kit.BASE,
        sliding_window=variant.span,
        attn_implementation="eager",
        pad_token_id=0,
    )
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for name, value in kit.weights(variant).items():
        *layer, stem, _ = name.split(".")
        prefix = f"model.layers.{layer[1]}." if layer else ""
        state[f"{prefix}{names[stem]}.weight"] = torch.from_numpy(value)
    model = transformers.Phi3ForCausalLM(config).float().eval()
    model.load_state_dict(state)
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS[None])).logits[0].numpy()
    found = ours(path, backend)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention__causal", False),
        ("attention__value_length", 8.0),
        ("rope__scaling__yarn_attn_factor", 1.5),
        ("rope__scaling__yarn_ext_factor", 0.5),
    ],
)
def test_fields_that_change_what_is_computed(field, value, tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, Variant("qwen2", head=16), **{field: value})
    with pytest.raises(ModelError, match=rf"field qwen2\.{field.replace('__', '.')} is {value}"):
        GgufImporter().load(str(path))


@pytest.mark.parametrize("pattern", [[True, False], [0.5, 1.0, 1.0]])
def test_patterns_that_are_not_those_of_the_layers(pattern, tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, Variant("gemma3", layers=3, span=kit.SPAN, pattern=pattern))
    with pytest.raises(ModelError, match="layers"):
        GgufImporter().load(str(path))
