"""GEMV: matmuls of few rows, each kernel against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_kit import after, run
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import kernels, target
from narrowpass_xnn_cpu.native.own import fp32, gemv, panels
from narrowpass_xnn_cpu.native.problems.epilogue import FUNCTIONS, Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.target import has_float16_gemm
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

UNBOUNDED = (-np.inf, np.inf)
KINDS = ("float32", "float16", "int8", "table")


def reads_with_avx2(kind: str, operator) -> bool:
    """Return whether panels have the width of AVX2; those of AVX-512 are wider."""
    return kind == "table" or operator._panels.layout.width == 16


def create(kind: str, outputs: int, channels: int, seed: int, limits=UNBOUNDED, epilogue=None):
    """Return an operator for few rows or None, and its matrix and bias dequantized."""
    epilogue = epilogue or Epilogue(limits=limits)
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(outputs).astype(np.float32)
    if kind == "table":
        matrix = rng.standard_normal((outputs, channels)).astype(np.float32)
        return gemv.UNPACKED.create(Matmul(Weight.of(matrix), None, epilogue)), matrix, 0.0 * bias
    with WeightsCache().begin() as session:
        if kind == "float32":
            matrix = rng.standard_normal((outputs, channels)).astype(kind)
            operator = fp32.MATMUL.create(
                Matmul(Weight.of(matrix), Weight.of(bias), epilogue), session
            )
            return operator.gemv(epilogue), matrix, bias.astype(np.float64)
        if kind == "float16":
            if not has_float16_gemm():
                return None, None, None
            matrix = rng.standard_normal((outputs, channels)).astype(kind)
            operator = xnn_matmul.create(Matmul(Weight.of(matrix), Weight.of(bias)), session)
            bias = bias.astype(kind)  # as XNNPACK packs it
            few = operator.gemv(epilogue)
            return few, matrix.astype(np.float64), bias.astype(np.float64)
        integers = rng.integers(-127, 128, (outputs, channels), np.int8)
        scale = (rng.random(outputs) + 0.5).astype(np.float32)
        stored = Quantized(Weight.of(integers), Weight.of(scale), None, 0)
        operator = xnn_matmul.create(
            Matmul(stored, Weight.of(bias), Epilogue(limits=limits)), session
        )
        few = operator.gemv(epilogue)
        matrix = integers * scale[:, None].astype(np.float64)
        return few, matrix, bias.astype(np.float64)


def bound(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the error bound of float32 accumulation."""
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(matrix).T + 1
    return (x.shape[1] + 8) * 2.0**-24 * magnitudes


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    outputs=st.one_of(st.integers(1, 200), st.sampled_from([256, 544, 1024, 1056])),
    channels=st.one_of(st.integers(1, 70), st.sampled_from([128, 511])),
    rows=st.integers(1, gemv.MAX_ROWS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1 << 20),
    clamped=st.booleans(),
)
def test_gemv(target, kind, outputs, channels, rows, threads, seed, clamped):
    limits = (-1.0, 2.0) if clamped else UNBOUNDED
    operator, matrix, bias = create(kind, outputs, channels, seed, limits)
    if operator is None:  # XNNPACK packs otherwise for so many outputs, or on this processor
        return
    if target == "avx2" and not reads_with_avx2(kind, operator):
        return
    x = np.random.default_rng(seed + 1).standard_normal((rows, channels)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", target)
        result = run(operator, x, threads)
    exact = x.astype(np.float64) @ matrix.T + bias
    wanted = np.clip(exact, *limits)
    assert (np.abs(result - wanted) <= bound(x, matrix)).all()


@pytest.mark.parametrize("target", ["best", "plain"])
@pytest.mark.parametrize("kind", ["float32", "table"])
@settings(max_examples=20, deadline=None)
@given(
    outputs=st.one_of(st.integers(1, 70), st.sampled_from([192, 256, 1024, 1040])),
    channels=st.integers(1, 40),
    rows=st.integers(1, gemv.MAX_ROWS),
    function=st.sampled_from(FUNCTIONS),
    residual=st.sampled_from(["", "before", "after"]),
    in_place=st.booleans(),
    threads=st.integers(1, 2),
)
def test_epilogues(target, kind, outputs, channels, rows, function, residual, in_place, threads):
    limits = (-1.0, 2.0) if function == "clamp" else UNBOUNDED
    operator, matrix, bias = create(
        kind, outputs, channels, 7, epilogue=Epilogue(function, limits, residual)
    )
    if operator is None:  # panels of 48 columns or fewer, the last ones narrower
        return
    rng = np.random.default_rng(8)
    x = rng.standard_normal((rows, channels)).astype(np.float32)
    added = rng.standard_normal((rows, outputs)).astype(np.float32) if residual else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", target)
        result = run(operator, x, threads, added, in_place and residual == "before")
    accumulators = x.astype(np.float64) @ matrix.T + bias
    before, last = (added if residual == place else 0 for place in ("before", "after"))
    wanted = after(function, accumulators + before) + last
    # The functions' own error is 1e-6 of their argument at most, and their slope below 1.2.
    allowed = 1.2 * bound(x, matrix) + 3e-6 * (np.abs(accumulators) + 2)
    assert (np.abs(result - wanted) <= allowed).all()


@pytest.mark.xnnpack
@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_there_is_such_an_operator_on_processors_with_avx_512(kind):
    lib = gemv.extension().lib
    if lib.np_isa() < lib.NP_TARGET_AVX512VNNI:
        pytest.skip("no AVX-512 with VNNI")
    assert create(kind, 256, 64, 0)[0] is not None


@pytest.mark.parametrize("outputs", [112, 400, 1000, 1023, 2000])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_last_panels_may_be_narrower(outputs, rows):
    """Up to three of them, whatever number of threads divides the panels."""
    lib = gemv.extension().lib
    if lib.np_isa() < lib.NP_TARGET_AVX2:
        pytest.skip("no AVX2")
    for threads in (1, 2, 3):
        operator, matrix, bias = create("float32", outputs, 70, 5)
        x = np.random.default_rng(6).standard_normal((rows, 70)).astype(np.float32)
        exact = x.astype(np.float64) @ matrix.T + bias
        assert (np.abs(run(operator, x, threads) - exact) <= bound(x, matrix)).all()


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "table"])
def test_nan_and_infinity_stay(kind, target, monkeypatch):
    operator, matrix, _ = create(kind, 64, 40, 3, (-1.0, 1.0))
    if operator is None:
        pytest.skip("XNNPACK packs otherwise here")
    if target == "avx2" and not reads_with_avx2(kind, operator):
        pytest.skip("packed for AVX-512")
    monkeypatch.setattr(kernels, "TARGET", target)
    x = np.ones((3, 40), np.float32)
    x[1, 7] = np.nan
    x[2, 11] = np.inf
    result = run(operator, x)
    assert np.isfinite(result[0]).all()
    assert np.isnan(result[1]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result[2], np.clip(np.inf * matrix[:, 11], -1, 1))


@pytest.mark.xnnpack
def test_matrices_in_another_layout_run_on_xnnpack(monkeypatch):
    look = xnn_matmul._layout.__wrapped__
    kinds = {**panels._KINDS, "float16": ("NP_PANELS_F16", 2, 4)}
    monkeypatch.setattr(panels, "_KINDS", kinds)
    assert look("float16", 64) is None


def tied(rows: int):
    """Return a model with a tied embedding: one table for the lookup and the LM head."""
    rng = np.random.default_rng(5)
    table = rng.standard_normal((97, 33)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("Transpose", ["table"], ["matrix"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "matrix"], ["y"], name="matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 97])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_a_tied_embedding_is_multiplied_in_place(rows):
    model = tied(rows)
    ids = np.arange(rows) * 11
    with compile_model(model) as program:
        (result,) = program.run({"ids": ids}).values()
        stats = program.stats()["weights"]
    (wanted,) = ReferenceEvaluator(model).run(None, {"ids": ids})
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)
    if target.current().reads_unpacked:
        packed = stats["heap_bytes"] + stats["mapped_bytes"]
        assert (packed == 0) == (rows <= gemv.MAX_ROWS)
