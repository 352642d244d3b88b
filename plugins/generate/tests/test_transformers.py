"""Greedy tokens and logits beside transformers' Llama on the same weights, in float32."""

from __future__ import annotations

import numpy as np
import pytest
from llama_kit import Shape, program_of, weights_of

from narrowpass_generate import Sampling, generate

PROMPT = [3, 17, 40, 8, 25, 3, 17]


@pytest.fixture(scope="module")
def llama():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shape = Shape()
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.epsilon,
        rope_theta=shape.theta,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    state = {}
    for name, value in weights_of(shape).items():
        layer, _, part = name.rpartition(".")
        if name == "embed":
            key = "model.embed_tokens"
        elif name == "lm_head":
            key = name
        elif not layer:
            key = "model.norm"
        else:
            inner = "mlp." if part in ("gate_proj", "up_proj", "down_proj") else "self_attn."
            key = f"model.layers.{layer}.{'' if 'norm' in part else inner}{part}"
        # A Linear of torch stores [outputs, inputs].
        turned = value.T if value.ndim == 2 and name != "embed" else value
        state[f"{key}.weight"] = torch.tensor(np.ascontiguousarray(turned))
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("penalty", [1.0, 1.2])
@pytest.mark.parametrize("options", [{}, {"lookup": 3}], ids=["plain", "lookup"])
def test_greedy_tokens(llama, penalty, options):
    torch = pytest.importorskip("torch")
    theirs = llama.generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, repetition_penalty=penalty
    )
    sampling = Sampling(repetition_penalty=penalty)
    with program_of() as program:
        ours = generate(program, PROMPT, sampling, tokens=40, **options)
    assert list(ours.tokens) == theirs[0, len(PROMPT) :].tolist()
