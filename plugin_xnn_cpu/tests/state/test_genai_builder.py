"""Decoders that onnxruntime-genai's model builder writes, appended in place.

`pip install --group models onnxruntime-genai` brings what they need; they are skipped where it is
not there.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import narrowpass
from narrowpass_planning.state.session import AppendingSession

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_genai")

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = 96
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {"llama": "LlamaConfig", "qwen2": "Qwen2Config"}


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request, tmp_path_factory):
    """A folder of transformers with random weights, and a tokenizer."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    config = getattr(transformers, CONFIGS[request.param])(**SIZES)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="w0", bos_token="w1", eos_token="w2"
    ).save_pretrained(path)
    return path


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_prompts_and_tokens(folder, precision, tmp_path):
    """Logits are onnxruntime's with caches as feeds.

    Both accumulate 64 and 128 float32 terms in another order. With 4-bit weights, both round rows
    to int8: an element between two integers may be rounded to either, 1/127 of the block's largest.
    """
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder)]
    command += ["-o", str(tmp_path), "-p", precision, "-e", "cpu", "-c", str(tmp_path / "cache")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    path = tmp_path / "model.onnx"
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [value.name for value in theirs.get_outputs()]
    names = [value.name for value in theirs.get_inputs() if "past" in value.name]
    caches = {name: np.zeros((1, 2, 0, 16), np.float32) for name in names}
    rng = np.random.default_rng(0)
    with narrowpass.load(path, "xnn-cpu", cache="memory") as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        assert not session.reason
        for rows in (7, *[1] * 8, 5, *[1] * 8):
            total = session.length + rows
            feeds = {
                "input_ids": rng.integers(0, WORDS, (1, rows)),
                "attention_mask": np.ones((1, total), np.int64),
            }
            right = dict(zip(outputs, theirs.run(None, feeds | caches), strict=True))
            caches = {name: right[name.replace("past_key_values", "present")] for name in names}
            found = session.run(feeds)["logits"]
            limit = (1e-5 if precision == "fp32" else 1e-2) * np.abs(right["logits"]).max()
            np.testing.assert_allclose(found, right["logits"], rtol=0, atol=limit)
