"""Smoothing: a Mul is inserted before matmuls where no existing constant can be scaled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from equalize_kit import SCALES, numbers
from static_kit import assert_runs_elsewhere, graph, outputs, quantized

from narrowpass_int8_sym.channels.rewrite import insert_mul, remove_mul, scale_constants

BLOCK = """g (float[N,8] x, float[8] g, float[8] b, float[8,8] q, float[8,8] k, float[8] c)
    => (float[N,8] y, float[N,8] z, float[N,8] rest) {
    [norm] n = LayerNormalization (x, g, b)
    [query] h = MatMul (n, q)
    [key] z = MatMul (n, k)
    [bias] y = Add (h, c)
    [residual] rest = Add (n, x)
}"""
WEIGHTS = {
    "g": SCALES,
    "b": numbers(8, seed=1) * SCALES,
    "q": numbers(8, 8, seed=2) / SCALES[:, None],
    "k": numbers(8, 8, seed=3) / SCALES[:, None],
    "c": numbers(8, seed=4),
}


def rows(count=8, scales=1.0):
    return [{"x": numbers(6, 8, seed=40 + number) * scales} for number in range(count)]


def post_norm(**weights):
    """A normalization of uneven channels, which two matmuls and a residual Add read."""
    return graph(BLOCK, WEIGHTS | weights)


def of_kind(result, kind):
    return [node for node in result.model.graph if node.op_type == kind]


def test_a_value_that_others_read_too_is_multiplied_once_for_all_matmuls():
    plain = quantized(post_norm(), rows(), mode="static", smooth=False, bias_correction=False)
    result = quantized(post_norm(), rows(), mode="static", bias_correction=False)
    assert result.sqnr() > plain.sqnr() + 6
    (row,) = of_kind(result, "Mul")
    assert row.inputs[0].name == "n"
    (reader,) = (use.node for use in row.outputs[0].uses())
    assert reader.op_type == "QuantizeLinear"
    assert result.count["QuantizeLinear"] == plain.count["QuantizeLinear"] == 1
    (smoothing,) = (item for item in result.decisions if item.decision == "equalized")
    assert (smoothing.node, smoothing.by) == (row.outputs[0].name, "smooth")
    assert set(smoothing.reason.split(": ")[0].split(" to ")[1].split(", ")) == {"query", "key"}


def test_the_result_runs_elsewhere():
    assert_runs_elsewhere(quantized(post_norm(), rows(), mode="static"))


def test_an_input_of_uneven_columns_is_multiplied():
    text = "g (float[N,8] x, float[8,4] w) => (float[N,4] y) { [p] y = Gemm (x, w) }"
    model = graph(text, {"w": numbers(8, 4) / SCALES[:, None]})
    plain = quantized(model, rows(scales=SCALES), mode="static", smooth=False)
    result = quantized(model, rows(scales=SCALES), mode="static")
    assert result.count["Mul"] == 1
    assert result.sqnr() > plain.sqnr() + 6


SHARED = "g (float[N,8] x, float[8,8] w) => (float[N,8] y) { h = MatMul (x, w) y = MatMul (h, w) }"
TABLE = """g (float[N,8] x, float[8,8] w, float[8,8] v) => (float[N,8] y) {
    h = MatMul (x, w) s = Sigmoid (h) y = MatMul (s, v) }"""
UNCHANGED = {
    "even channels": (TABLE, {"w": numbers(8, 8), "v": numbers(8, 8)}, 1.0),
    "a weight of two matmuls": (SHARED, {"w": numbers(8, 8) / SCALES[:, None]}, SCALES),
}


@pytest.mark.parametrize(("text", "weights", "scales"), UNCHANGED.values(), ids=UNCHANGED)
def test_nothing_is_inserted(text, weights, scales):
    data = rows(scales=scales)
    plain = quantized(graph(text, weights), data, mode="static", smooth=False)
    result = quantized(graph(text, weights), data, mode="static")
    assert [node.op_type for node in result.model.graph] == [
        node.op_type for node in plain.model.graph
    ]
    assert set(result.model.graph.initializers) == set(plain.model.graph.initializers)
    assert result.count["Mul"] == 0


UNEVEN = {"w": numbers(8, 8), "v": numbers(8, 8) * SCALES[:, None]}
GELU = """g (float[N,8] x, float[8,8] w, float[8] c, float[8,8] v) => (float[N,8] y) {
    [up] h = MatMul (x, w)
    [bias] b = Add (h, c)
    [gelu] a = Gelu (b)
    [down] y = MatMul (a, v) }"""
GATED = """g (float[N,8] x, float[8,8] w, float[8,8] u, float[8,8] v) => (float[N,8] y) {
    [up] h = MatMul (x, w)
    [gate] f = MatMul (x, u)
    [sigmoid] s = Sigmoid (f)
    [silu] a = Mul (f, s)
    [times] t = Mul (a, h)
    [down] y = MatMul (t, v) }"""
OUTLIERS = np.float32([1, 1, 1, 1, 1, 1, 1, 40])
"""One channel is far above the others, as in the feed-forward block of a trained transformer."""
BLOCKS = {
    "a function": (GELU, {"w": numbers(8, 8) * OUTLIERS, "c": numbers(8, seed=2)}, ["gelu"]),
    "a gate": (GATED, {"w": numbers(8, 8) * OUTLIERS, "u": numbers(8, 8, seed=3)}, ["times"]),
}


@pytest.mark.parametrize(("text", "weights", "floats"), BLOCKS.values(), ids=BLOCKS)
def test_what_spreads_too_far_for_bytes_is_computed_in_float(text, weights, floats):
    """Bytes of its result would have a few steps for all channels but one."""
    weights = weights | {"v": numbers(8, 8, seed=5) / OUTLIERS[:, None]}
    plain = quantized(graph(text, weights), rows(), mode="static", smooth=False)
    result = quantized(graph(text, weights), rows(), mode="static")
    assert result.sqnr() > plain.sqnr() + 3
    assert [plain.verdicts[name] for name in floats] == ["int8"] * len(floats)
    for name in floats:
        assert result.verdicts[name] == "float"
        assert "differ too much for int8" in result.reasons[name]
    assert {result.verdicts[name] for name in ("up", "down")} == {"int8"}
    assert_runs_elsewhere(result)


def test_a_function_whose_channels_are_alike_stays_a_table_of_bytes():
    weights = {"w": numbers(8, 8), "c": numbers(8, seed=2), "v": numbers(8, 8, seed=5)}
    result = quantized(graph(GELU, weights), rows(), mode="static")
    assert result.verdicts["gelu"] == "int8"
    assert result.count["Mul"] == 0


def test_what_is_asked_for_stays_in_bytes():
    result = quantized(graph(TABLE, UNEVEN), rows(), mode="static", green=("op:Sigmoid",))
    assert result.count["Mul"] == 0
    assert next(v for v in result.decisions if v.op_type == "Sigmoid").decision == "int8"


def test_a_tolerance_keeps_what_was_decided():
    result = quantized(graph(TABLE, UNEVEN), rows(), mode="static", tolerance="cosine:0.9")
    assert result.count["Mul"] == 1
    assert next(v for v in result.decisions if v.op_type == "Sigmoid").decision == "float"


def test_one_sample_is_not_trusted():
    result = quantized(post_norm(), rows(1), mode="static")
    assert result.count["Mul"] == 0
    assert quantized(post_norm(), rows(2), mode="static").count["Mul"] == 1


def test_a_matmul_that_stays_float_reads_the_value_as_it_was():
    result = quantized(post_norm(), rows(), mode="static", red=("key",))
    (row,) = of_kind(result, "Mul")
    (key,) = (node for node in of_kind(result, "MatMul") if node.name == "key")
    assert key.inputs[0].name == "n"
    assert row.outputs[0] is not key.inputs[0]
    assert np.array_equal(result.constant(key.inputs[1]), WEIGHTS["k"])


def test_a_row_changes_results_by_rounding_only_and_is_removed_without_a_trace():
    model = post_norm()
    right = outputs(model, rows())
    text = ir.to_proto(model).SerializeToString(deterministic=True)
    weighted_nodes = [node for node in model.graph if node.op_type == "MatMul"]
    value = weighted_nodes[0].inputs[0]
    # The second one first: the row comes before both nevertheless.
    region = insert_mul(model, value, weighted_nodes[::-1])
    assert region is not None
    remove_mul(model, region)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == text
    region = insert_mul(model, value, weighted_nodes[::-1])
    assert region is not None
    assert scale_constants(model, region, SCALES.astype(np.float64))
    for one, other in zip(right, outputs(model, rows()), strict=True):
        for name in one:
            assert np.abs(one[name] - other[name]).max() <= 1e-5 * np.abs(one[name]).max()
