"""Decoders of transformers as torch's two exporters and Optimum write them, appended in place.

`pip install --group models` brings what they need; they are skipped where it is not there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import narrowpass
from narrowpass_planning.state.session import AppendingSession

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS, LAYERS, HEADS, HEAD = 96, 2, 4, 16
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": HEADS * HEAD,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=HEAD),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=HEAD, sliding_window=6),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=HEAD, sliding_window=6),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=WORDS, n_embd=HEADS * HEAD, n_layer=LAYERS, n_head=HEADS, n_positions=512
    ),
}
CASES = [
    ("llama", "script", False),
    ("llama", "script", True),
    ("llama", "dynamo", False),
    ("qwen3", "dynamo", True),
    ("gemma2", "dynamo", False),
    ("gemma3", "dynamo", False),
    ("gpt2", "script", False),
    ("gpt2", "dynamo", True),
]


class Stateless(torch.nn.Module):
    """A decoder whose caches are inputs and outputs."""

    def __init__(self, model, *, masked: bool) -> None:
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, input_ids, *rest):
        """Return logits, then the keys and the values of each layer."""
        mask, pasts = (rest[0], rest[1:]) if self.masked else (None, rest)
        cache = transformers.DynamicCache()
        for layer in range(LAYERS):
            cache.update(pasts[2 * layer], pasts[2 * layer + 1], layer)
        found = self.model(
            input_ids=input_ids, attention_mask=mask, past_key_values=cache, use_cache=True
        )
        caches = [part for each in cache.layers for part in (each.keys, each.values)]
        return (found.logits, *caches)


def export(model, path: Path, exporter: str, *, masked: bool) -> None:
    """Write a decoder as ONNX."""
    groups = getattr(model.config, "num_key_value_heads", HEADS)
    pasts = [f"past_key_values.{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    presents = [name.replace("past_key_values", "present") for name in pasts]
    args = [torch.zeros((1, 3), dtype=torch.int64)]
    names = ["input_ids"]
    if masked:
        args.append(torch.ones((1, 8), dtype=torch.int64))
        names.append("attention_mask")
    args += [torch.zeros((1, groups, 5, HEAD)) for _ in pasts]
    given = {"input_names": names + pasts, "output_names": ["logits", *presents]}
    decoder = Stateless(model, masked=masked).eval()
    if exporter == "dynamo":
        grows = torch.export.Dim.DYNAMIC
        rest = [{1: grows}] * masked + [{2: grows}] * len(pasts)
        program = torch.onnx.export(
            decoder, tuple(args), dynamo=True, dynamic_shapes=({1: grows}, tuple(rest)), **given
        )
        program.save(path)
        return
    axes = {"input_ids": {1: "rows"}, "logits": {1: "rows"}}
    axes |= {name: {2: "past"} for name in pasts} | {name: {2: "total"} for name in presents}
    if masked:
        axes["attention_mask"] = {1: "total"}
    torch.onnx.export(
        decoder, tuple(args), path, dynamo=False, opset_version=17, dynamic_axes=axes, **given
    )


@pytest.mark.parametrize(("name", "exporter", "masked"), CASES)
def test_prompt_and_tokens(name, exporter, masked, tmp_path, monkeypatch):
    """Logits of a prompt and of 20 tokens are those of transformers without caches.

    Two layers of 64 float32 terms are accumulated in another order; logits are below 1.
    """
    torch.manual_seed(0)
    attention = "eager" if name == "gemma2" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[name](), attn_implementation=attention
    ).eval()
    path = tmp_path / "model.onnx"
    export(model, path, exporter, masked=masked)
    bundle = narrowpass.build(path, "")
    assert len(bundle.states) == 2 * LAYERS
    text = torch.randint(0, WORDS, (1, 9))
    with narrowpass.load(bundle, "xnn-cpu", cache="memory") as program:
        session = program.session()
        assert isinstance(session, AppendingSession), session.reason
        assert not session.reason
        new = text
        for step in range(21):
            feeds = {"input_ids": new.numpy()}
            if masked:
                feeds["attention_mask"] = np.ones(text.shape, np.int64)
            if step == 3:  # what follows is planned: a token runs the tape again
                monkeypatch.setattr(session, "_run_anew", None)
            found = session.run(feeds)["logits"][0, -1]
            with torch.no_grad():
                wanted = model(text).logits[0, -1].numpy()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)
            new = torch.tensor([[int(wanted.argmax())]])
            text = torch.cat([text, new], 1)
        assert session.length == 29


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_optimum(name, tmp_path):
    """Two sequences, one padded on the left, as Optimum exports a decoder: beside onnxruntime.

    The same tolerance; without the padding logits would differ by a tenth of the largest or more.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    # Its versions of today read transformers of version 4.
    exporter = pytest.importorskip("optimum.exporters.onnx.__main__", exc_type=ImportError)
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    transformers.AutoModelForCausalLM.from_config(config).eval().save_pretrained(tmp_path / "model")
    exporter.main_export(
        tmp_path / "model",
        tmp_path,
        task="text-generation-with-past",
        library_name="transformers",
        do_validation=False,
        device="cpu",
    )
    path = tmp_path / "model.onnx"
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [each.name for each in reference.get_outputs()]
    pasts = {
        each.name: np.zeros((2, 2, 0, HEAD), np.float32)
        for each in reference.get_inputs()
        if "past" in each.name
    }
    given = {each.name for each in reference.get_inputs()}
    rng = np.random.default_rng(0)
    with narrowpass.load(path, "xnn-cpu", cache="memory") as program:
        session = program.session()
        assert isinstance(session, AppendingSession), session.reason
        for rows in (7, 1, 1, 1, 5, 1, 1):
            mask = np.ones((2, session.length + rows), np.int64)
            mask[1, :3] = 0
            positions = np.maximum(mask.cumsum(1) - 1, 0)[:, session.length :]
            feeds = {
                "input_ids": rng.integers(0, WORDS, (2, rows)),
                "attention_mask": mask,
                "position_ids": positions,
            }
            feeds = {key: value for key, value in feeds.items() if key in given}
            wanted = dict(zip(outputs, reference.run(None, {**feeds, **pasts}), strict=True))
            pasts = {key: wanted[key.replace("past_key_values", "present")] for key in pasts}
            found = session.run(feeds)["logits"]
            np.testing.assert_allclose(found, wanted["logits"], rtol=0, atol=5e-6)
