"""demo: what it measures, against computations here."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference

import narrowpass
from narrowpass_demo.command import demo


def _oracle():
    """Accuracy of the model as onnx's own evaluator computes it."""
    folder = resources.files("narrowpass_demo")
    model = onnx.load_from_string((folder / "digits.onnx").read_bytes())
    with (folder / "digits.npz").open("rb") as file, np.load(file) as archive:
        images, labels = archive["image"], archive["label"]
    x = (images.astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    logits = onnx.reference.ReferenceEvaluator(model).run(None, {"image": x})[0]
    return float(np.mean(logits.argmax(1) == labels)), len(labels), len(model.graph.node)


def test_no_passes(call, tmp_path):
    document = json.loads(call("demo", "--runs", "1", "--json"))
    accuracy, count, nodes = _oracle()
    assert (document["images"], document["passes"]) == (count, False)
    original, bundle = document["rows"]
    assert (original["label"], bundle["label"]) == ("original", "")
    for row in (original, bundle):
        assert row["accuracy"] == accuracy
        assert (row["nodes"], row["agreement"], row["relative"]) == (nodes, 1.0, 0.0)
    assert original["bytes"] == len(
        (resources.files("narrowpass_demo") / "digits.onnx").read_bytes()
    )
    weights = onnx.load(str(resources.files("narrowpass_demo") / "digits.onnx")).graph.initializer
    assert {row["weights"] for row in (original, bundle)} == {
        sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in weights)
    }
    shown = demo.help
    for key in (*document.keys() - {"version"}, *original):
        assert key in shown
    assert list(tmp_path.iterdir()) == []


def test_table_and_what_is_kept(call, tmp_path):
    printed = call("demo", "--runs", "1", "--keep", "kept")
    for text in ("original", "bundle, no passes", "accuracy", "No passes are installed"):
        assert text in printed
    lines = [line.strip() for line in printed.splitlines() if line.startswith("  narrowpass ")]
    assert len(lines) == 3
    for line in lines:
        call(*line.split()[1:])
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"digits.onnx", "digits-unchanged.narrow"}


def test_rows_come_from_what_is_installed(call, install):
    from dataclasses import dataclass

    from narrowpass import PassResult

    @dataclass(frozen=True)
    class Fold(narrowpass.Pass):
        """Stands in for a plugin's pass."""

        name = "fold"

        def run(self, model, ctx):
            return PassResult(model, modified=False)

    @dataclass(frozen=True)
    class Fp16(Fold):
        """Looks at the calibration images."""

        name = "fp16"

        def run(self, model, ctx):
            ctx.counters["seen"] = sum(
                feeds["image"].shape == (1, 1, 8, 8) for feeds in ctx.samples
            )
            return PassResult(model, modified=False)

    install(Fold, Fp16)
    rows = json.loads(call("demo", "--runs", "1", "--json"))["rows"]
    assert [row["label"] for row in rows] == ["original", "fold", "fold,fp16"]


def test_a_folder_with_a_nul(narrowpass_cli, install):
    result = narrowpass_cli("demo", "--keep", "\0")
    assert result.exit_code == 2
    assert "has a NUL character" in result.stderr
