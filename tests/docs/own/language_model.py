"""A GGUF file and a folder of transformers of the reader's own, with random weights."""

import json
import sys
from pathlib import Path

import safetensors.numpy

sys.path.append(str(Path(__file__).parents[3] / "plugins" / "gguf" / "tests"))
import gguf_kit as kit

kit.write("model.gguf")
config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": kit.WIDTH,
    "intermediate_size": kit.HIDDEN,
    "num_attention_heads": kit.HEADS,
    "num_key_value_heads": kit.GROUPS,
    "num_hidden_layers": kit.LAYERS,
    "vocab_size": kit.VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": kit.EPSILON,
    "rope_theta": kit.BASE,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
tensors = {}
for name, weight in kit.weights().items():
    *block, part, _ = name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    tensors[f"{prefix}{names[part]}.weight"] = weight
folder = Path("FOLDER")
folder.mkdir()
(folder / "config.json").write_text(json.dumps(config))
safetensors.numpy.save_file(tensors, folder / "model.safetensors")
