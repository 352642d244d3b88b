"""Gates: SiLU, GELU by tanh and QuickGelu, times another value in the same pass."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import check, compile_model, fully_connected, skip_where_nan_is_lost

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import kernels, target
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import Tape

SILU = "e = Sigmoid(a) g = Mul(a, e)"
QUICK = "h = Mul(a, slope) e = Sigmoid(h) g = Mul(a, e)"
TANH = """p = Pow(a, three) q = Mul(p, cubic) r = Add(a, q) s = Mul(r, root) t = Tanh(s)
    e = Add(t, one) h = Mul(a, half) g = Mul(h, e)"""
GATES = {"silu": SILU, "quick": QUICK, "tanh": TANH, "Gelu": 'g = Gelu<approximate = "tanh">(a)'}
APART = "a = MatMul(x, wide) b = MatMul(x, other)"
TOGETHER = "c = MatMul(x, both) a, b = Split<axis = -1>(c, halves)"


def model_of(body, opset=20):
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g (float[b, n, 8] x, float[b, n, 24] z) => (float[b, n, k] y)
    <float one = {{1}}, float half = {{0.5}}, float three = {{3}}, float slope = {{1.702}},
    float cubic = {{0.044715}}, float root = {{0.7978845608}}, int64[2] halves = {{24, 24}},
    int64[2] uneven = {{24, 23}}> {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, width in {"wide": 24, "other": 24, "both": 48}.items():
        array = rng.standard_normal((8, width)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds_of(b=2, n=5):
    rng = np.random.default_rng(1)
    shapes = {"x": (b, n, 8), "z": (b, n, 24)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def kernels_of(program, feeds):
    return [row.kernel for row in program.profile(feeds, runs=1)]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("operands", [APART, TOGETHER])
@pytest.mark.parametrize("last", ["y = Mul(g, b)", "y = Mul(b, g)"])
def test_gated_units(gate, operands, last):
    model, feeds = model_of(f"{operands} {GATES[gate]} {last}"), feeds_of()
    found = kernels_of(check(model, feeds), feeds)
    matmuls = [fully_connected()] * (2 if operands == APART else 1)
    if operands == APART and gate != "quick" and target.current().has_fp32_gemm:
        assert found == [*matmuls, "xnn multiply"]  # the gate is fused into the first matmul
    else:
        assert found == [*matmuls, "gate"]


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows(threads):
    model, feeds = model_of(f"{TOGETHER} {SILU} y = Mul(g, b)"), feeds_of(3, 300)
    check(model, feeds, program=compile_model(model, threads=threads))


def test_quick_gelu_alone():
    model, feeds = model_of(f"a = MatMul(x, wide) {QUICK} y = Relu(g)"), feeds_of()
    assert "gate" in kernels_of(check(model, feeds), feeds)


NOT_ONE = {
    "of another shape": f"a = MatMul(x, wide) {SILU} y = Mul(g, z)",
    "gated by itself": f"a = MatMul(x, wide) {SILU} y = Mul(g, g)",
    "the gate is read": f"{APART} {SILU} y0 = Mul(g, b) y = Add(y0, g)",
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_forms_that_are_not_fused(name):
    model, feeds = model_of(NOT_ONE[name]), feeds_of()
    found = kernels_of(check(model, feeds), feeds)
    assert "xnn multiply" in found or "xnn add" in found
    assert "gate" not in found


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 5),
    columns=st.sampled_from([1, 2, 7, 16, 33, 64, 100]),
    form=st.sampled_from([(1.0, 0.0), (1.702, 0.0), (1.5957691, 0.0713548)]),
    factor=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_kernel_against_numpy(rows, columns, form, factor, seed):
    rng = np.random.default_rng(seed)
    whole = (rng.standard_normal((rows, 2 * columns + 3)) * 10).astype(np.float32)
    width = whole.shape[1]
    places = (1, width), (columns + 2, width)
    params = kernels.gate(rows, columns, places[0], places[1] if factor else None, *form)
    out = np.full((rows, columns), np.nan, np.float32)
    tape = Tape([Entry("NP_GATE", (0, 0), 1, None, params, True, "gate")], 2)
    tape.bind(0, whole)
    tape.bind(1, out)
    tape.run(ThreadPool(1, spin=False))
    x = whole[:, 1 : columns + 1].astype(np.float64)
    with np.errstate(over="ignore"):
        expected = x / (1 + np.exp(-(form[0] * x + form[1] * x**3)))
    expected *= whole[:, columns + 2 : 2 * columns + 2] if factor else 1
    # The argument of the logistic function is off by some units of its own: so much the result is.
    bound = 1e-6 * (1 + np.abs(expected)) + 2e-6 * np.abs(expected) * np.minimum(np.abs(x), 20)
    np.testing.assert_array_less(np.abs(out - expected), bound + 1e-6)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e30, -1e30])
def test_numbers_out_of_range(number):
    if np.isnan(number):
        skip_where_nan_is_lost()
    model, feeds = model_of(f"{TOGETHER} {SILU} y = Mul(g, b)"), feeds_of()
    feeds["x"][0, 1, 2] = number
    check(model, feeds)


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("a = MatMul(x, A) b = MatMul(x, B)", [{"x": (4, 8), "q": (1, 16)}]),
        (
            "a = MatMul(x, B) c = MatMul(x, B) b = Add(c, q)",
            [{"x": (1, 8), "q": (3, 16)}, {"x": (3, 8), "q": (3, 16)}],
        ),
    ],
)
def test_operands_of_other_shapes_are_not_fused(body, shapes):
    """Batches of matrices, and a sum that is broadcast, from rows of one tensor."""
    rng = np.random.default_rng(7)
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[n, 8] x, float[m, 16] q) => (float[] y) <float slope = {{1.702}}> {{
            {body} h = Mul(a, slope) e = Sigmoid(h) g = Mul(a, e) y = Mul(g, b)
        }}
    """)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, shape in (("A", (3, 8, 16)), ("B", (8, 16))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    with compile_model(model) as program:
        for sizes in shapes:
            feeds = {k: rng.standard_normal(s).astype(np.float32) for k, s in sizes.items()}
            (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
            np.testing.assert_allclose(program.run(feeds)["y"], expected, rtol=1e-5, atol=1e-5)
