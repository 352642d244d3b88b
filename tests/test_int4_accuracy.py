"""`benchmarks/int4_accuracy`: figures, rows that are kept, and quantizers in another process."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.once
FOLDER = Path(__file__).parents[1] / "benchmarks" / "int4_accuracy"
NAMES = ("texts", "scores", "rows", "peers")

TOOL = """
import numpy as np
from answering import Reader, answer

def quantize(request):
    print("this is no answer")
    if request["method"] == "unknown":
        raise ValueError("no method 'unknown'")
    first = Reader(request["samples"]).get_next()
    table = np.arange(12, dtype=np.float32).reshape(4, 3) + first["ids"].sum()
    return (lambda ids: table[ids[0]]), 4 + 16 / request["block"]

answer(quantize)
"""


@pytest.fixture
def parts(monkeypatch):
    """Import modules of the benchmark, which is a script and no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_figures_by_hand(parts):
    rng = np.random.default_rng(0)
    right, logits = (rng.standard_normal((70, 19)).astype(np.float32) for _ in range(2))
    targets = rng.integers(0, 19, 70)
    known = parts["scores"].log_probabilities(right)
    score = parts["scores"].Score()
    score.add(known[:40], logits[:40], targets[:40])
    score.add(known[40:], logits[40:], targets[40:])
    row = score.row()
    p, q = (np.exp(each.astype(np.float64)) for each in (right, logits))
    p, q = (each / each.sum(axis=1, keepdims=True) for each in (p, q))
    lost = (p * np.log(p / q)).sum(axis=1)
    # Logits are float32 of magnitude 4, so logarithms have errors of about 4 · 2⁻²⁴.
    assert row["divergence"] == pytest.approx(lost.mean(), rel=1e-5)
    assert row["error"] == pytest.approx(lost.std() / np.sqrt(70), rel=1e-5)
    perplexity = np.exp(-np.log(q[np.arange(70), targets]).mean())
    assert row["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert row["same"] == (p.argmax(1) == q.argmax(1)).mean()
    assert row["tokens"] == 70


def test_the_reference_is_computed_once(parts, tmp_path):
    rng = np.random.default_rng(1)
    chosen = [rng.integers(0, 7, (1, parts["texts"].CONTEXT)) for _ in range(2)]
    table = rng.standard_normal((7, 7)).astype(np.float32)
    asked = []

    def run():
        asked.append(1)
        return lambda ids: table[ids[0]]

    for _ in range(2):
        reference = parts["scores"].Reference(run, chosen, 7, tmp_path)
        assert reference.score(None)["divergence"] == 0
        assert reference.score(lambda ids: table[ids[0]])["same"] == 1
        assert reference.score(lambda ids: 2 * table[ids[0]])["divergence"] > 0.01
    assert asked == [1]


def test_rows_are_kept_by_form_tokens_and_samples(parts, tmp_path):
    rows = parts["rows"].Rows(tmp_path, 511, 8)
    row = {"form": "int4{method=gptq,block=64}", "bits": 4.25, "samples": 8, "perplexity": 15.0}
    row |= {"divergence": 0.05, "error": 0.001, "same": 0.88, "seconds": 3.0, "tokens": 511}
    assert rows.read(row["form"], data=True) is None
    rows.write(row, data=True)
    assert rows.read(row["form"], data=True) == row
    assert parts["rows"].Rows(tmp_path, 511, 9).read(row["form"], data=True) is None
    assert parts["rows"].Rows(tmp_path, 1022, 8).read(row["form"], data=True) is None
    other = "int4{method=gptq,block=64,symmetric=false}"
    assert rows.read(other, data=True) is None
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text("utf-8")) == row
    expected = f"| `{row['form']}` | 4.25 | 8 | 15.000 | 0.0500 ± 0.0010 | 88.0 % |"
    assert parts["rows"].markdown([row]).splitlines()[-1] == expected
    heads = parts["rows"].HEADER.split()
    assert len(parts["rows"].line(row).split()) == len(heads)


def test_another_quantizer_answers(parts, tmp_path, monkeypatch):
    (tmp_path / "by_some.py").write_text(TOOL, "utf-8")
    (tmp_path / "answering.py").write_bytes((FOLDER / "tools" / "answering.py").read_bytes())
    monkeypatch.setattr(parts["peers"], "TOOLS", tmp_path)
    samples = [np.array([[2, 3]])]
    with parts["peers"].Peer(sys.executable, "some", "rtn 32", tmp_path) as peer:
        assert peer.quantize(tmp_path / "model.onnx", samples) == 4.5
        right = np.arange(12, dtype=np.float32).reshape(4, 3) + 5
        for ids in ([[0, 3]], [[1]]):
            np.testing.assert_array_equal(peer.run(np.array(ids)), right[ids[0]])
        with pytest.raises(parts["peers"].PeerError, match="IndexError"):
            peer.run(np.array([[9]]))
    with (
        parts["peers"].Peer(sys.executable, "some", "unknown 32", tmp_path) as peer,
        pytest.raises(parts["peers"].PeerError, match="ValueError: no method 'unknown'"),
    ):
        peer.quantize(tmp_path / "model.onnx", samples)
    with (
        parts["peers"].Peer(sys.executable, "missing", "rtn 32", tmp_path) as peer,
        pytest.raises(parts["peers"].PeerError, match="ended"),
    ):
        peer.quantize(tmp_path / "model.onnx", samples)
