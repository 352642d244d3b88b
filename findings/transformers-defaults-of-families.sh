#!/usr/bin/env bash
# A field that config.json leaves out means something else in each family of transformers.
#
# One would guess that an absent `num_key_value_heads` means as many as there are heads, an absent
# `sliding_window` none, and an absent `rope_theta` 10,000. Mistral has 8 heads of keys and a
# window of 4,096 then, Qwen2 32 heads of keys whatever the number of heads, SmolLM3 a theta of
# 2,000,000, and Gemma 2 caps on logits and a scale of scores for heads of 256 elements, whatever
# their size. Files leave out what equals the default of their class.
#
# Seen with transformers 5.24.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q transformers==5.24.0
venv/bin/python - <<'PYTHON'
import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers
from transformers import Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, SmolLM3Config

few = {"num_attention_heads": 8, "hidden_size": 512}
families = LlamaConfig, MistralConfig, Qwen2Config
heads = {c.__name__: c(**few).num_key_value_heads for c in families}
window = {c.__name__: getattr(c(), "sliding_window", None) for c in (LlamaConfig, MistralConfig)}
theta = {c.__name__: c().rope_parameters["rope_theta"] for c in (LlamaConfig, SmolLM3Config)}
gemma = Gemma2Config(head_dim=64)
caps = gemma.attn_logit_softcapping, gemma.final_logit_softcapping, gemma.query_pre_attn_scalar
print("transformers", transformers.__version__)
print("heads of keys, of 8 heads:", heads)
print("window:", window, "theta:", theta)
print("Gemma 2, heads of 64: caps and scale", caps)
assert heads == {"LlamaConfig": 8, "MistralConfig": 8, "Qwen2Config": 32}
assert MistralConfig(num_attention_heads=16, hidden_size=512).num_key_value_heads == 8
assert window == {"LlamaConfig": None, "MistralConfig": 4096}
assert theta == {"LlamaConfig": 10_000, "SmolLM3Config": 2_000_000}
assert caps == (50, 30, 256)
PYTHON
