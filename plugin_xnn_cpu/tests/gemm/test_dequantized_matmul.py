"""Matmuls of many rows with an int8 matrix, against float64.

A weight is rounded once when it is scaled, the bias twice, each multiply-add once: a result
may be off by (channels + 8) half units in the last place of the sum of magnitudes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_kit import run
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.own.upcast import MIN_ROWS, UpcastMatmul, upcasts
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

RNG = np.random.default_rng(5)


def create(outputs: int, channels: int, seed: int, limits: tuple[float, float] = (-np.inf, np.inf)):
    """Return the operator, its matrix and its bias; no operator where XNNPACK packs otherwise."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-127, 128, (outputs, channels), np.int8)
    scale = (rng.random(outputs) + 0.5).astype(np.float32) / np.float32(64)
    bias = rng.standard_normal(outputs).astype(np.float32)
    stored = Quantized(Weight.of(integers), Weight.of(scale), None, 0)
    with WeightsCache().begin() as session:
        panels = xnn_matmul.create(Matmul(stored, Weight.of(bias)), session).panels()
    operator = panels and UpcastMatmul(panels, limits)
    return operator, integers * scale[:, None].astype(np.float64), bias.astype(np.float64)


@pytest.mark.parametrize("target", ["best", "plain"])
@settings(max_examples=30, deadline=None)
@given(
    outputs=st.one_of(st.integers(1, 200), st.sampled_from([256, 1056])),
    channels=st.one_of(st.integers(1, 70), st.sampled_from([768, 769, 1600])),
    rows=st.one_of(st.integers(1, 40), st.sampled_from([190, 1100])),
    threads=st.integers(1, 3),
    clamped=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_matmul(target, outputs, channels, rows, threads, clamped, seed):
    if target == "plain":
        rows = min(rows, 40)  # it is slow
    limits = (-1.0, 2.0) if clamped else (-np.inf, np.inf)
    operator, matrix, bias = create(outputs, channels, seed, limits)
    if operator is None:
        assert not upcasts(MIN_ROWS)
        return
    x = np.random.default_rng(seed + 1).standard_normal((rows, channels)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", target)
        result = run(operator, x, threads)
    wanted = np.clip(x.astype(np.float64) @ matrix.T + bias, *limits)
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(matrix).T + np.abs(bias) + 1
    assert (np.abs(result - wanted) <= (channels + 8) * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize("rows", [1, 5, 15, 16, 130])
def test_int8_weights_are_dequantized_by_our_kernel(rows):
    integers = RNG.integers(-127, 128, (96, 72)).astype(np.int8)
    scales = (RNG.random(72) / 32).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
            helper.make_node("MatMul", ["x", "d"], ["y"], name="matmul"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 72])],
        [numpy_helper.from_array(integers, "w"), numpy_helper.from_array(scales, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = RNG.standard_normal((rows, 96)).astype(np.float32)
    program = compile_model(model)
    (plan,) = [plan for plan in program.explain() if plan.node == "matmul"]
    assert ("xnn" in plan.kernel) != upcasts(
        MIN_ROWS
    )  # of many rows, where their number is not known
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5, atol=2e-5)
