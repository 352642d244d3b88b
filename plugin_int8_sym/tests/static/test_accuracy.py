"""Static int8 with smoothing and bias correction; the noise that it reports."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from equalize_kit import SCALES, evaluated, numbers
from static_kit import graph, quantized

from narrowpass import Context, Observer, Samples
from narrowpass_int8_sym.int8_sym import Int8Sym

BLOCK = """g (float[N,8] x, float[8] g, float[8] b, float[8,8] w, float[8,8] u, float[8] c,
    float[8,4] v) => (float[N,4] y, float[N,8] z) {
    [norm] n = LayerNormalization (x, g, b)
    [first] a = MatMul (n, w)
    [bias] h = Add (a, c)
    [act] r = Relu (h)
    [second] y = MatMul (r, v)
    [third] z = MatMul (n, u)
}"""


def block():
    """A normalization of uneven channels, which two matmuls read."""
    weights = {
        "g": SCALES,
        "b": numbers(8, seed=1) * SCALES,
        "w": numbers(8, 8, seed=2) / SCALES[:, None],
        "u": numbers(8, 8, seed=3) / SCALES[:, None],
        "c": numbers(8, seed=4),
        "v": numbers(8, 4, seed=5),
    }
    return graph(BLOCK, weights)


def rows(count=8):
    return [{"x": numbers(6, 8, seed=40 + number)} for number in range(count)]


def test_smoothing_raises_the_ratio_of_signal_to_noise():
    plain = quantized(block(), rows(), mode="static", smooth=False, bias_correction=False)
    result = quantized(block(), rows(), mode="static", bias_correction=False)
    assert result.sqnr() > plain.sqnr() + 6
    assert {item.decision for item in result.decisions if item.node == "n"} == {"int8", "equalized"}
    equalized = [item for item in result.decisions if item.decision == "equalized"]
    assert (equalized[0].node, equalized[0].by) == ("n", "smooth")
    assert result.count["LayerNormalization"] == plain.count["LayerNormalization"]
    assert result.count["Mul"] == 0


def test_convolutions_are_left_to_the_pass_equalize():
    text = """g (float[1,4,6,6] x, float[8,4,1,1] w, float[8,1,3,3] v) => (float[1,8,4,4] y) {
        a = Conv (x, w) r = Relu (a) y = Conv <group = 8> (r, v) }"""
    weights = {"w": numbers(8, 4, 1, 1) * SCALES[:, None, None, None], "v": numbers(8, 1, 3, 3)}
    feeds = [{"x": numbers(1, 4, 6, 6, seed=n)} for n in range(4)]
    result = quantized(graph(text, weights), feeds, mode="static")
    assert "equalized" not in {item.decision for item in result.decisions}


def test_corrected_biases_raise_the_ratio_of_signal_to_noise():
    """Inputs whose mean is far from zero: what rounding the weights adds is nearly constant."""
    text = """g (float[N,8] x, float[4,8] w) => (float[N,4] y) { y = Gemm <transB = 1> (x, w) }"""
    model = graph(text, {"w": numbers(4, 8)})
    feeds = [{"x": numbers(50, 8, seed=n) * 0.1 + 5} for n in range(4)]
    plain = quantized(model, feeds, mode="static", weights="per-tensor", bias_correction=False)
    result = quantized(model, feeds, mode="static", weights="per-tensor")
    assert result.sqnr() > plain.sqnr() + 3


def test_the_mean_is_not_corrected_where_most_of_the_error_varies():
    text = """g (float[N,8] x, float[4,8] w) => (float[N,4] y) { y = Gemm <transB = 1> (x, w) }"""
    model = graph(text, {"w": numbers(4, 8)})
    feeds = [{"x": numbers(50, 8, seed=n) + 0.2} for n in range(4)]
    plain = quantized(model, feeds, mode="static", bias_correction=False)
    result = quantized(model, feeds, mode="static")
    for right, got in zip(plain.outputs(), result.outputs(), strict=True):
        assert np.array_equal(right["y"], got["y"])


def test_nothing_is_left_behind_where_nothing_is_quantized():
    result = quantized(block(), rows(), mode="static", red=("op:MatMul",))
    assert not result.modified


def test_each_quantized_value_has_its_noise():
    result = quantized(block(), rows(4), mode="static", smooth=False, bias_correction=False)
    sqnr = {item.node: item.sqnr for item in result.decisions if item.sqnr is not None}
    assert {"n", "r"} <= set(sqnr)
    before = ir.to_proto(result.float_model)
    for name in ("n", "r"):
        dequantize = next(
            node
            for node in result.model.graph
            if node.op_type == "DequantizeLinear"
            and (quantize := node.inputs[0].producer()) is not None
            and quantize.inputs[0].name == name
        )
        right = [evaluated(before, feed, name).astype(np.float64) for feed in rows(4)]
        got = [evaluated(result.proto, feed, dequantize.outputs[0].name) for feed in rows(4)]
        noise = sum(np.sum((one - other) ** 2) for one, other in zip(right, got, strict=True))
        signal = sum(np.sum(one**2) for one in right)
        # float32 accumulators differ between evaluators, and now and then an element by a step.
        assert sqnr[name] == pytest.approx(10 * np.log10(signal / noise), abs=0.5)


def test_noise_that_nobody_reads_is_not_measured():
    written = {}
    for reads in (True, False):
        observer = Observer(reads_decisions=reads)
        ctx = Context(samples=Samples("test data", lambda: rows(4)), observer=observer)
        result = Int8Sym(mode="static").run(block(), ctx)
        assert any(item.sqnr is not None for item in ctx.decisions) is reads
        written[reads] = ir.to_proto(result.model).SerializeToString(deterministic=True)
    assert written[True] == written[False]
