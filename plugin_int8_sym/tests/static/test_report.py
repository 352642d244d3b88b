"""What the report of static quantization shows of values, and how far the pass is."""

from __future__ import annotations

import numpy as np
import pytest
from int8_kit import floats
from static_kit import Limited, graph, quantized

import narrowpass
from narrowpass import Context, Observer, Samples
from narrowpass.runtime.quantization import QuantizationSpec
from narrowpass_int8_sym.int8_sym import Int8Sym
from narrowpass_report.page import render

MODEL = """g (float[N,16] x, float[16,8] w, float[8,4] v) => (float[N,4] y) {
    [first] a = MatMul (x, w)
    [act] r = Relu (a)
    [second] y = MatMul (r, v)
}"""


def model():
    return graph(MODEL, {"w": floats(16, 8), "v": floats(8, 4)})


def data():
    return [{"x": floats(5, 16)} for _ in range(4)]


@pytest.mark.parametrize("activations", ["affine", "symmetric"])
def test_clipping_ranges_are_those_of_the_integers(activations):
    result = quantized(model(), data(), mode="static", activations=activations)
    shown = {item.node: item.histogram for item in result.decisions if item.histogram is not None}
    assert {"x", "r"} <= set(shown)
    found = {}
    for node in result.model.graph:
        if node.op_type == "QuantizeLinear":
            scale, zero = (result.constant(value) for value in node.inputs[1:])
            ends = [float(scale) * (end - int(zero)) for end in (-128, 127)]
            found[node.inputs[0].name.removesuffix(".float")] = ends
    for name in set(shown) & set(found):
        low, high = found[name]
        right = (0.0 if shown[name].low >= 0 else low, high)
        assert shown[name].clipping == pytest.approx(right, rel=1e-6)
    assert set(shown) & set(found)
    total = sum(shown["x"].counts) + shown["x"].zeros
    assert total == sum(feeds["x"].size for feeds in result.data)


def test_calibrators_without_histograms_report_none():
    result = quantized(model(), data(), mode="static", calibrator="minmax")
    assert all(item.histogram is None for item in result.decisions)


def test_the_page_draws_them():
    bundle = narrowpass.build(model(), "int8-sym{mode=static}", calibration=data())
    content = render(bundle, "title")
    assert content.count("<svg") >= 2
    assert "Stayed wide: nothing" in content


def test_progress_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    reported = []
    ctx = Context(
        target=Limited(QuantizationSpec()),
        samples=Samples("new data", lambda: [{"x": np.full((1, 16), 3, np.float32)}] * 3),
        observer=Observer(progress=lambda *given: reported.append(given)),
    )
    Int8Sym(mode="static").run(model(), ctx)
    stages = list(dict.fromkeys(stage for stage, *_ in reported))
    assert stages[0] == "smoothing channels"
    assert [row for row in reported if row[0] == "calibrating"] == [
        ("calibrating", done, 6) for done in range(1, 7)
    ]
