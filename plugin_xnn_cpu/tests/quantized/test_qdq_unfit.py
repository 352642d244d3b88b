"""Quantized operators with constants that XNNPACK computes wrongly with: floats, and a reason."""

from __future__ import annotations

import numpy as np
import pytest
from qdq_graph import QdqGraph
from qdq_kit import off_by
from xnn_kit import compile_model

from narrowpass_xnn_cpu.native.problems import quantization
from narrowpass_xnn_cpu.native.problems.quantization import LEAST_WEIGHT


def kernel_of(graph: QdqGraph, op_type: str, **feeds: np.ndarray) -> str:
    """Check a model; return the kernel of an operator."""
    model = graph.model()
    assert set(off_by(model, feeds)) <= {0, 1}
    plans = compile_model(model).explain()
    assert not [plan for plan in plans if plan.reason]
    (kernel,) = [plan.kernel for plan in plans if plan.op_type == op_type]
    return kernel


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(5).standard_normal(shape) * scale).astype(np.float32)


def quantized_matmul(
    weight: np.ndarray,
    weight_scale: np.ndarray,
    *,
    given: tuple[float, int] = (0.03, 4),
    result: tuple[float, int] = (0.1, 0),
    bias: np.ndarray | None = None,
    zero: np.ndarray | None = None,
) -> QdqGraph:
    graph = QdqGraph()
    x = graph.quantize(graph.input(["N", weight.shape[0]]), *given)
    parameters = [graph.constant(weight), graph.constant(weight_scale)]
    if zero is not None:
        parameters.append(graph.constant(zero))
    w = graph.node("DequantizeLinear", *parameters, axis=1)
    y = graph.node("MatMul", x, w)
    if bias is not None:
        y = graph.node("Add", y, graph.constant(bias))
    graph.output(graph.quantize(y, *result))
    return graph


WEIGHT = np.random.default_rng(0).integers(-127, 128, (12, 5)).astype(np.int8)
SCALES = np.linspace(0.01, 0.02, 5, dtype=np.float32)


def test_operands_that_fit_run_in_int8():
    """What the other tests vary."""
    assert kernel_of(quantized_matmul(WEIGHT, SCALES), "MatMul", x=normal(7, 12)).endswith("int8")


def test_weight_of_minus_128():
    weight = WEIGHT.copy()
    weight[3, 2] = -128
    kernel = kernel_of(quantized_matmul(weight, SCALES), "MatMul", x=normal(7, 12))
    if LEAST_WEIGHT == -128:
        assert kernel.endswith("fully connected int8")
    else:
        assert kernel.endswith(" in float32: a weight is -128")


def test_weight_of_minus_128_where_kernels_need_minus_127(monkeypatch):
    monkeypatch.setattr(quantization, "LEAST_WEIGHT", -127)
    weight = WEIGHT.copy()
    weight[3, 2] = -128
    kernel = kernel_of(quantized_matmul(weight, SCALES), "MatMul", x=normal(7, 12))
    assert kernel.endswith(" in int8 (weights): a weight is -128")


def test_zero_point_of_weights():
    kernel = kernel_of(
        quantized_matmul(WEIGHT, SCALES, zero=np.int8([0, 0, 1, 0, 0])), "MatMul", x=normal(7, 12)
    )
    assert kernel == "fully connected int8"


def test_unsigned_weights():
    weight = (WEIGHT.astype(np.int16) + 128).astype(np.uint8)
    zero = np.full(5, 128, np.uint8)
    kernel = kernel_of(quantized_matmul(weight, SCALES, zero=zero), "MatMul", x=normal(7, 12))
    assert kernel.endswith("fully connected int8")


@pytest.mark.parametrize(("scale", "fits"), [(255.0, True), (257.0, False)])
def test_ratio_of_the_scales_of_a_matmul(scale, fits):
    graph = quantized_matmul(WEIGHT, SCALES, result=(0.03 * float(SCALES.max()) / scale, 0))
    kernel = kernel_of(graph, "MatMul", x=normal(7, 12, scale=1e-4))
    assert kernel.endswith("int8") == fits
    if not fits:
        assert ": input scale * weight scale / output scale is 257" in kernel


def test_scale_below_the_least_normal_number():
    kernel = kernel_of(
        quantized_matmul(WEIGHT, SCALES, given=(1e-39, 0)), "MatMul", x=normal(7, 12, scale=0.0)
    )
    assert "is not a positive, finite, normal number" in kernel


def test_a_bias_below_the_resolution_of_the_accumulators():
    bias = np.float32([0.1, 0.2, 0.3, 0.4, 0.5])
    scales = np.full(5, 8.0, np.float32)
    graph = quantized_matmul(WEIGHT, scales, given=(1.0, 0), result=(1.0, 0), bias=bias)
    kernel = kernel_of(graph, "MatMul", x=normal(7, 12))
    assert "its bias is rounded by" in kernel


def test_a_bias_beyond_the_accumulator_headroom():
    bias = np.full(5, 1e8, np.float32)
    graph = quantized_matmul(WEIGHT, SCALES, result=(1e6, 0), bias=bias)
    kernel = kernel_of(graph, "MatMul", x=normal(7, 12))
    assert "int32 accumulators may overflow with its bias" in kernel


def test_more_terms_than_the_accumulator_headroom():
    """66,400 terms of 127 times 255 do not fit 31 bits."""
    count = 66_400
    weight = np.full((count, 2), 127, np.int8)
    graph = quantized_matmul(weight, np.float32([1e-4, 1e-4]), given=(1.0, -128), result=(1e4, 0))
    kernel = kernel_of(graph, "MatMul", x=np.full((1, count), 255, np.float32))
    assert "int32 accumulators of 66400 terms may overflow" in kernel


@pytest.mark.parametrize(
    ("op_type", "scale", "fits"),
    [
        ("Add", 0.03 / 250, True),
        ("Add", 0.03 / 260, False),
        ("Sub", 0.03 * 1000, True),
        ("Sub", 0.03 * 1030, False),
        ("Mul", 0.03 * 0.02 / 250, True),
        ("Mul", 0.03 * 0.02 / 260, False),
        ("Mul", 0.03 * 0.02 * 65000, True),
        ("Mul", 0.03 * 0.02 * 66000, False),
    ],
)
def test_ratio_of_two_operands(op_type, scale, fits):
    graph = QdqGraph()
    first = graph.quantize(graph.input([4, 6]), 0.03, 4)
    second = graph.quantize(graph.input([4, 6], "x2"), 0.02 if op_type == "Mul" else 0.03, -9)
    graph.output(graph.quantize(graph.node(op_type, first, second), scale, 0))
    kernel = kernel_of(graph, op_type, x=normal(4, 6), x2=normal(4, 6))
    assert kernel.endswith("int8") == fits
    if not fits:
        assert "in float32: " in kernel
        assert "output scale is" in kernel


def test_an_output_that_is_clamped_to_one_byte():
    graph = QdqGraph()
    x = graph.quantize(graph.input([4, 12]), 0.03, 4)
    w = graph.node("DequantizeLinear", graph.constant(WEIGHT), graph.constant(np.float32(0.01)))
    low, high = graph.constant(np.float32(1)), graph.constant(np.float32(1.01))
    y = graph.node("Clip", graph.node("MatMul", x, w), low, high)
    graph.output(graph.quantize(y, 0.1, 0))
    assert "the output is clamped to [10, 10]" in kernel_of(graph, "MatMul", x=normal(4, 12))


def test_a_scale_that_is_computed():
    """Then bytes are no more than bytes: floats between are computed with."""
    graph = QdqGraph()
    x, s = graph.input([4, 12]), graph.node("Abs", graph.input([], "s"))
    zero = graph.constant(np.int8(0))
    q = graph.node("QuantizeLinear", x, s, zero)
    y = graph.node("MatMul", graph.node("DequantizeLinear", q, s, zero), graph.weight((12, 5), 1))
    graph.output(graph.quantize(y, 0.1, 0))
    model = graph.model()
    feeds = {"x": normal(4, 12), "s": np.array(0.02, np.float32)}
    assert set(off_by(model, feeds)) <= {0, 1}
    kernels = {plan.op_type: plan.kernel for plan in compile_model(model).explain()}
    assert "in int8 (weights)" in kernels["MatMul"]
