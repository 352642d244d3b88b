"""Normalization of rows: the kernel, the forms that exporters write, fused additions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import check, compile_model

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import Tape

WIDTH = 24
CONSTANTS = f"""<float two = {{2}}, float one = {{1}}, float epsilon = {{0.00001}},
    int64[1] last = {{-1}}, float half = {{-0.5}}, float[{WIDTH}] scale, float[{WIDTH}] bias,
    float[{WIDTH}] row, float[1, 1, {WIDTH}] wide>"""


def model_of(body, given="float[b, n, 24] x", out="float[b, n, 24] y", opset=18):
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g ({given}) => ({out}) {CONSTANTS} {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for value in [*model.graph.value_info]:
        model.graph.value_info.remove(value)
    for name, shape in {"scale": (24,), "bias": (24,), "row": (24,), "wide": (1, 1, 24)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        kept = [t for t in model.graph.initializer if t.name == name]
        for tensor in kept:
            model.graph.initializer.remove(tensor)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds_of(*names, b=2, n=5, dtype=np.float32, seed=1):
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal((b, n, 24)) * 3 + 1).astype(dtype) for name in names}


def kernels_of(program, feeds):
    return [row.kernel for row in program.profile(feeds, runs=1)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 9])),
    columns=st.sampled_from([1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 768, 1030]),
    spread=st.sampled_from(["none", "same", "row", "outer"]),
    keeps=st.booleans(),
    bias=st.booleans(),
    rms=st.booleans(),
    target=st.sampled_from(["best", "avx2", "plain"]),
    seed=st.integers(0, 1000),
)
def test_kernel_against_float64(rows, columns, spread, keeps, bias, rms, target, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((*rows, columns)) + 2).astype(np.float32)
    shapes = {"none": None, "same": rows, "row": (1, 1, 1), "outer": (1, *rows[1:])}
    lead = shapes[spread]
    added = None if lead is None else rng.standard_normal((*lead, columns)).astype(np.float32)
    scale, shift = rng.standard_normal((2, columns)).astype(np.float32)
    views = [rows] if lead is None else [rows, lead]
    strides = [kernels.broadcast_strides(view, rows) for view in views]
    before = kernels.TARGET
    kernels.TARGET = target
    try:
        params = kernels.layer_norm(
            rows,
            columns,
            strides,
            1e-5,
            bias=bias,
            root_mean_square=rms,
            sum_offset=x.size if keeps and lead is not None else 0,
        )
    finally:
        kernels.TARGET = before
    arrays = [x, scale, *([shift] if bias else []), *([] if added is None else [added])]
    out = np.full((2, *rows, columns), np.nan, np.float32)
    inputs = tuple(range(len(arrays)))
    tape = Tape([Entry("NP_LAYER_NORM", inputs, len(arrays), None, params, True, "n")], 5)
    for number, array in enumerate((*arrays, out)):
        tape.bind(number, array)
    tape.run(ThreadPool(1, spin=False))
    wide = x.astype(np.float64) + (0 if added is None else added)
    centred = wide if rms else wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale
    expected += shift if bias else 0
    # Rows of two or three numbers may be nearly alike: their differences have lost digits.
    exact = centred**2
    lost = 1e-6 * np.abs(wide).max() / np.sqrt(exact.mean(-1, keepdims=True) + 1e-5)
    bound = (5e-6 + lost) * (1 + np.abs(expected)) * (1 + np.abs(scale))
    assert (np.abs(out[0] - expected) <= bound).all()
    if keeps and lead is not None:
        np.testing.assert_array_equal(out[1], x + added)
    else:
        assert np.isnan(out[1]).all()


SQUARES = {"Pow": "s = Pow(d, two)", "Mul": "s = Mul(d, d)"}
ROOT = "v = ReduceMean(s, last) e = Add(v, epsilon) r = Sqrt(e)"
NORMAL = {
    "Div": "n = Div(d, r)",
    "Reciprocal": "f = Reciprocal(r) n = Mul(d, f)",
    "one over": "f = Div(one, r) n = Mul(f, d)",
}
MEAN = "m = ReduceMean(x, last) d = Sub(x, m)"
LAYER_NORMS = {
    f"{square}, {normal}": f"{MEAN} {SQUARES[square]} {ROOT} {NORMAL[normal]} "
    "t = Mul(n, scale) y = Add(t, bias)"
    for square in SQUARES
    for normal in NORMAL
}
LAYER_NORMS |= {
    "turned around": f"{MEAN} {SQUARES['Mul']} v = ReduceMean(s, last) e = Add(epsilon, v) "
    "r = Sqrt(e) n = Div(d, r) t = Mul(scale, n) y = Add(bias, t)",
    "mean taken away twice": f"{MEAN} {SQUARES['Pow']} {ROOT} d1 = Sub(x, m) n = Div(d1, r) "
    "t = Mul(n, scale) y = Add(t, bias)",
    "as TensorFlow": f"{MEAN} {SQUARES['Mul']} {ROOT} f = Reciprocal(r) g = Mul(f, scale) "
    "u = Mul(x, g) w = Mul(m, g) h = Sub(bias, w) y = Add(u, h)",
    "scale first": f"{MEAN} {SQUARES['Mul']} {ROOT} f = Reciprocal(r) g = Mul(f, scale) "
    "u = Mul(d, g) y = Add(u, bias)",
    "no bias": f"{MEAN} {SQUARES['Mul']} {ROOT} n = Div(d, r) y = Mul(n, scale)",
    "no scale": f"{MEAN} {SQUARES['Mul']} {ROOT} y = Div(d, r)",
    "by a power": f"{MEAN} {SQUARES['Mul']} v = ReduceMean(s, last) e = Add(v, epsilon) "
    "f = Pow(e, half) n = Mul(d, f) t = Mul(n, wide) y = Add(t, bias)",
}
RMS_NORMS = {
    name: body.replace(MEAN, "d = Identity(x)")
    for name, body in LAYER_NORMS.items()
    if name not in ("mean taken away twice", "as TensorFlow")
}


def without_identity(model):
    """Take out what `fold` takes out."""
    node = next((n for n in model.graph.node if n.op_type == "Identity"), None)
    if node is None:
        return model
    model.graph.node.remove(node)
    for other in model.graph.node:
        for index, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[index] = node.input[0]
    return model


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norm(name):
    model, feeds = model_of(LAYER_NORMS[name]), feeds_of("x")
    assert kernels_of(check(model, feeds), feeds) == ["layer-norm"]


@pytest.mark.parametrize("forms", [LAYER_NORMS, RMS_NORMS], ids=["layer", "rms"])
def test_the_rows_of_a_token_are_one_row(forms):
    """Rows and scale then have shapes that are alike."""
    for body in forms.values():
        model = model_of(body, "float[1, 1, 24] x", "float[1, 1, 24] y")
        model, feeds = without_identity(model), feeds_of("x", b=1, n=1)
        assert kernels_of(check(model, feeds), feeds) == ["layer-norm"], body


@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norm(name):
    model, feeds = without_identity(model_of(RMS_NORMS[name])), feeds_of("x")
    assert kernels_of(check(model, feeds), feeds) == ["layer-norm"]


def test_axes_as_an_attribute():
    body = LAYER_NORMS["Pow, Div"].replace("(x, last)", "<axes = [-1]>(x)")
    model = model_of(body.replace("(s, last)", "<axes = [2]>(s)"), opset=13)
    feeds = feeds_of("x")
    assert kernels_of(check(model, feeds), feeds) == ["layer-norm"]


def test_casts_between_floats_are_looked_through():
    """As exporters write models in float16: computed in float32, scaled in float16."""
    body = """w = Cast<to = 1>(x) s = Pow(w, two) v = ReduceMean(s, last) e = Add(v, epsilon)
        r = Sqrt(e) f = Reciprocal(r) n = Mul(w, f) h = Cast<to = 10>(n)
        k = Cast<to = 10>(scale) y = Mul(k, h)"""
    model = model_of(body, "float16[b, n, 24] x", "float16[b, n, 24] y")
    # The evaluator rounds what is scaled to float16 too: two units in the last place.
    feeds = feeds_of("x", dtype=np.float16)
    program = check(model, feeds, tolerance=3e-3, native=None)
    assert "layer-norm in float32" in {plan.kernel for plan in program.explain()}


NOT_ONE = {
    "another axis": "m = ReduceMean(x, last) d = Sub(x, m) s = Mul(d, d) first = Neg(last) "
    "v = ReduceMean(s, first) e = Add(v, epsilon) r = Sqrt(e) y = Div(d, r)",
    "axes are dropped": "s = Mul(x, x) v = ReduceMean<keepdims = 0>(s, last) "
    "e = Add(v, epsilon) r = Sqrt(e) u = Unsqueeze(r, last) y = Div(x, u)",
    "of others": "s = Mul(z, z) v = ReduceMean(s, last) e = Add(v, epsilon) r = Sqrt(e) "
    "y = Div(x, r)",
    "cubes": "p = Mul(x, x) s = Mul(p, x) v = ReduceMean(s, last) a = Abs(v) "
    "e = Add(a, epsilon) r = Sqrt(e) y = Div(x, r)",
    "the mean of others": "m = ReduceMean(z, last) d = Sub(x, m) s = Mul(d, d) "
    "v = ReduceMean(s, last) e = Add(v, epsilon) r = Sqrt(e) y = Div(x, r)",
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_near_misses_are_not_fused(name):
    model = model_of(NOT_ONE[name], "float[b, n, 24] x, float[b, n, 24] z")
    feeds = feeds_of("x", "z")
    program = check(model, feeds, native=None)
    assert "layer-norm" not in kernels_of(program, feeds)


def test_a_value_between_is_read():
    model = model_of(LAYER_NORMS["Pow, Div"], out="float[b, n, 24] y, float[b, n, 1] r")
    feeds = feeds_of("x")
    assert "layer-norm" not in kernels_of(check(model, feeds), feeds)


NORM = {
    "layer": "y = LayerNormalization<epsilon = 0.001>(a, scale, bias)",
    "nodes": LAYER_NORMS["Pow, Div"].replace("(x", "(a"),
}


@pytest.mark.parametrize("norm", NORM)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wanted", ["no", "read", "output", "before"])
def test_additions_are_fused_whoever_reads_them(norm, threads, wanted):
    """The sum may have other readers, or be an output."""
    body = f"a = Add(x, z) {NORM[norm]}"
    out = "float[b, n, 24] y"
    if wanted == "read":
        body, out = f"{body} o = Mul(a, y)", "float[b, n, 24] o"
    elif wanted == "before":
        body = f"a = Add(x, z) q = Relu(a) {NORM[norm]}"
        out += ", float[b, n, 24] q"
    elif wanted == "output":
        out += ", float[b, n, 24] a"
    model = model_of(body, "float[b, n, 24] x, float[b, n, 24] z", out)
    feeds = feeds_of("x", "z", b=3, n=200 if threads > 1 else 5)
    program = check(model, feeds, program=compile_model(model, threads=threads))
    found = kernels_of(program, feeds)
    assert "add + layer-norm" in found
    assert not {"xnn add", "layer-norm"} & set(found)


@pytest.mark.parametrize(
    ("z", "shape"),
    [("1, n, 24", (1, 5, 24)), ("b, 1, 24", (2, 1, 24)), ("1, 1, 24", (1, 1, 24))],
)
@pytest.mark.parametrize("body", ["a = Add(x, z)", "a = Add(z, x)"])
def test_additions_that_broadcast_are_fused(body, z, shape):
    """The result is as large as both together, whichever comes first."""
    model = model_of(f"{body} {NORM['layer']}", f"float[b, n, 24] x, float[{z}] z")
    feeds = feeds_of("x") | {"z": np.random.default_rng(3).standard_normal(shape, np.float32)}
    assert kernels_of(check(model, feeds), feeds) == ["add + layer-norm"]


@pytest.mark.parametrize("operand", ["row", "wide"])
def test_additions_of_a_constant_row_are_fused(operand):
    model = model_of(f"a = Add({operand}, x) {NORM['layer']}")
    feeds = feeds_of("x")
    assert kernels_of(check(model, feeds), feeds) == ["add + layer-norm"]


def test_the_first_of_two_normalizations_takes_the_sum():
    body = """a = Add(x, z) y = LayerNormalization(a, scale, bias)
        o = LayerNormalization(a, row, bias)"""
    out = "float[b, n, 24] y, float[b, n, 24] o"
    model = model_of(body, "float[b, n, 24] x, float[b, n, 24] z", out)
    feeds = feeds_of("x", "z")
    assert kernels_of(check(model, feeds), feeds) == ["add + layer-norm", "layer-norm"]


@pytest.mark.parametrize("shape", [(0, 5, 24), (2, 0, 24)])
def test_empty_inputs(shape):
    model = model_of(
        f"a = Add(x, z) {NORM['layer']} o = Mul(a, y)",
        "float[b, n, 24] x, float[b, n, 24] z",
        "float[b, n, 24] o",
    )
    feeds = {name: np.zeros(shape, np.float32) for name in ("x", "z")}
    assert compile_model(model).run(feeds)["o"].shape == shape
