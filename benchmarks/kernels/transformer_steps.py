"""Lists what transformers of random weights are computed with, as each exporter writes them.

    python benchmarks/kernels/transformer_steps.py FOLDER [--models bert,llama] [--width 384]
        [--time]

Exports each model with both exporters, and in the eager form of attention at operator set 14, into
FOLDER; folds and compiles it; and prints how many steps of each kernel run, those of numpy and
of the reference evaluator among them. With --time, milliseconds of each kernel at 128 tokens on one
thread instead. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import narrowpass

FORMS = ("torchscript", "eager", "dynamo")


def models(width: int, layers: int) -> dict[str, Callable[[], Any]]:
    """Return the builder of each model."""
    import transformers as t

    heads = max(2, width // 32)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"intermediate_size": 4 * width, "vocab_size": 1000}
    groups = {"num_key_value_heads": heads // 2, "use_cache": False, "pad_token_id": 0}
    t5 = {"d_model": width, "d_kv": 32, "d_ff": 4 * width, "num_heads": heads}
    gpt = {"n_embd": width, "n_layer": layers, "n_head": heads, "use_cache": False}
    return {
        "bert": lambda: t.BertModel(t.BertConfig(**sizes)),
        "albert": lambda: t.AlbertModel(t.AlbertConfig(embedding_size=32, **sizes)),
        "clip": lambda: t.CLIPTextModel(t.CLIPTextConfig(**sizes)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=1000, **gpt)),
        "gptj": lambda: t.GPTJForCausalLM(t.GPTJConfig(vocab_size=1000, rotary_dim=16, **gpt)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes, **groups)),
        "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(head_dim=32, **sizes, **groups)),
        "gemma": lambda: t.GemmaForCausalLM(t.GemmaConfig(head_dim=32, **sizes, **groups)),
        "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**sizes, **groups)),
        "t5": lambda: t.T5EncoderModel(
            t.T5Config(vocab_size=1000, num_layers=layers, use_cache=False, **t5)
        ),
    }


def export(model: Any, form: str, path: Path) -> None:
    """Write a model of tokens and a mask, both dimensions free."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    if form == "eager":
        model.set_attn_implementation("eager")
    names = ["input_ids", "attention_mask"]
    example = torch.randint(0, 900, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    dims = {0: "batch", 1: "sequence"}
    given: dict[str, Any] = {"input_names": names, "output_names": ["y"], "external_data": False}
    if form == "dynamo":
        free = dict.fromkeys(dims, torch.export.Dim.DYNAMIC)
        given |= {"dynamo": True, "dynamic_shapes": (free, free), "verbose": False}
    else:
        given |= {"dynamo": False, "dynamic_axes": dict.fromkeys(names, dims)}
        given["opset_version"] = 14 if form == "eager" else 17
    with torch.no_grad():
        torch.onnx.export(First(), example, path, **given)


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--time", action="store_true")
    given = parser.parse_args()
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    given.folder.mkdir(parents=True, exist_ok=True)
    makers = models(given.width, given.layers)
    for name in given.models.split(",") if given.models else makers:
        for form in FORMS:
            path = given.folder / f"{name}-{given.width}-{given.layers}-{form}.onnx"
            if not path.exists():
                torch.manual_seed(0)
                export(makers[name](), form, path)
            program = narrowpass.load(narrowpass.build(str(path), "fold"), "xnn-cpu", threads=1)
            rng = np.random.default_rng(0)
            sequence = 128 if given.time else 16
            feeds = {"input_ids": rng.integers(0, 900, (1, sequence))}
            feeds["attention_mask"] = np.ones((1, sequence), np.int64)
            rows = program.profile(feeds, runs=5 if given.time else 1)
            counts = Counter(row.kernel for row in rows)
            if given.time:
                counts = Counter()
                for row in rows:
                    counts[row.kernel] += row.seconds * 1e3
            listed = ", ".join(f"{kernel} {count:.3g}" for kernel, count in counts.most_common())
            print(f"{name} {form}: {listed}", flush=True)


if __name__ == "__main__":
    main()
