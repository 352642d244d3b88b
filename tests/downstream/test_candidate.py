"""The candidate of a third party takes part in ``auto``; its plugin is `rounding.py`."""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import narrowpass

pytest.importorskip("narrowpass_auto")


def _model():
    rng = np.random.default_rng(0)
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[batch, 32] x, float[32, 32] w) => (float[batch, 32] y) { y = MatMul(x, w) }"
    )
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(rng.standard_normal((32, 32)).astype(np.float32), name="w")
    model.graph.register_initializer(weight)
    return model, [{"x": rng.standard_normal((4, 32)).astype(np.float32)} for _ in range(6)]


def test_it_is_chosen_where_it_is_within_the_limit(monkeypatch, tmp_path):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.delitem(sys.modules, "rounding", raising=False)
    points = [p for p in importlib.metadata.entry_points(group="narrowpass") if p.name != "xnn_cpu"]
    own = importlib.metadata.EntryPoint("rounding", "rounding", "narrowpass")
    plugins = narrowpass.load_plugins(entry_points=[*points, own])
    assert "rounded" in plugins.registry.candidates
    model, samples = _model()
    for bound, decision in (("1e-1", "rounded"), ("1e-9", "fp32")):
        bundle = narrowpass.build(
            model,
            f"auto{{max-error=rel:{bound},objective=bytes,allow=[rounded]}}",
            target="reference",
            calibration=samples,
            plugins=plugins,
        )
        (item,) = bundle.reports[-1].methods["main"].decisions
        assert item["decision"] == decision
        built = ir.to_proto(bundle.methods["main"])
        for feeds in samples:
            right = feeds["x"] @ model.graph.initializers["w"].const_value.numpy()
            (got,) = onnx.reference.ReferenceEvaluator(built).run(None, feeds)
            # bfloat16 has 8 bits: each weight is within 2^-9 of itself.
            assert np.abs(got - right).max() <= 2**-8 * np.abs(right).max()
