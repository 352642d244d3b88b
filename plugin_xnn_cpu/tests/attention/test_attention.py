"""Attention as one operation: every way of writing it, every way its operands lie."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import check, close, compile_model

from narrowpass_xnn_cpu.native import attention_params, kernels
from narrowpass_xnn_cpu.native.library import extension

SCALES = {
    "none": "s = MatMul(q, k)",
    "multiplied": "s0 = MatMul(q, k) s = Mul(c, s0)",
    "divided": "s0 = MatMul(q, k) s = Div(s0, c)",
    "on both operands": "q1 = Mul(q, c) k1 = Mul(k, c) s = MatMul(q1, k1)",
}


def attention(scale="none", mask="", heads=4, output="y"):
    """Return a model: q, k and v as [b, rows, heads · depth], the result likewise."""
    masked = "t = Add(s, mask)" if mask else "t = Identity(s)"
    given = f", float[{mask}] mask" if mask else ""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[b, m, w] qs, float[b, n, w] ks, float[b, n, u] vs{given}) => (float[b, m, u] y)
    <int64[4] split = {{0, 0, {heads}, -1}}, int64[3] join = {{0, 0, -1}}, float c = {{0.25}}>
    {{
        q0 = Reshape(qs, split) q = Transpose<perm = [0, 2, 1, 3]>(q0)
        k0 = Reshape(ks, split) k = Transpose<perm = [0, 2, 3, 1]>(k0)
        v0 = Reshape(vs, split) v = Transpose<perm = [0, 2, 1, 3]>(v0)
        {SCALES[scale]} {masked} p = Softmax<axis = -1>(t)
        o0 = MatMul(p, v) o = Transpose<perm = [0, 2, 1, 3]>(o0) {output} = Reshape(o, join)
    }}"""
    model = parser.parse_model(text)
    if not mask:
        # Identity is what `fold` takes out.
        (identity,) = [node for node in model.graph.node if node.op_type == "Identity"]
        (softmax,) = [node for node in model.graph.node if node.op_type == "Softmax"]
        softmax.input[0] = identity.input[0]
        model.graph.node.remove(identity)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds(rng, b, m, n, w, u, **more):
    """Return standard normal operands."""
    shapes = {"qs": (b, m, w), "ks": (b, n, w), "vs": (b, n, u), **more}
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def kernels_of(program):
    return [p.kernel for p in program.explain() if p.kernel]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mask", ["", "b, 1, 1, n", "m, n", "b, 4, m, n", "1", "1, 4, m, 1"])
def test_forms_of_exporters_are_one_step(scale, mask):
    sizes = {"b": 2, "m": 5, "n": 9, "1": 1, "4": 4}
    more = {"mask": tuple(sizes[part] for part in mask.split(", "))} if mask else {}
    model = attention(scale, mask)
    program = compile_model(model)
    check(model, feeds(np.random.default_rng(0), 2, 5, 9, 12, 20, **more), program=program)
    rows = program.profile(feeds(np.random.default_rng(0), 2, 5, 9, 12, 20, **more), runs=1)
    assert [row.kernel for row in rows] == ["attention"]  # nothing is moved


def test_a_mask_that_is_one_number():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[2,3,5,8] q, float[2,3,8,7] k, float[2,3,7,4] v, float mask) => (float[2,3,5,4] y) {
            s = MatMul(q, k)
            m = Add(s, mask)
            p = Softmax<axis=-1>(m)
            y = MatMul(p, v)
        }""")
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 5, 8), "k": (2, 3, 8, 7), "v": (2, 3, 7, 4), "mask": ()}
    given = {
        name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()
    }
    program = compile_model(model)
    check(model, given, program=program)
    assert "attention" in kernels_of(program)


BORDERS = st.sampled_from([1, 2, 3, 4, 5, 11, 12, 13, 15, 16, 17, 31, 32, 33, 48, 49, 64, 97, 130])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 3]),
    m=BORDERS,
    n=BORDERS,
    depth=st.sampled_from([1, 3, 8, 16, 17, 32, 40, 64]),
    values=st.sampled_from([1, 5, 16, 24, 32, 33, 64, 70]),
    mask=st.sampled_from(["", "b, 1, m, n", "n"]),
    threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_kernel_at_all_sizes(b, heads, m, n, depth, values, mask, threads, seed):
    rng = np.random.default_rng(seed)
    sizes = {"b": b, "1": 1, "m": m, "n": n}
    more = {"mask": tuple(sizes[part] for part in mask.split(", "))} if mask else {}
    given = feeds(rng, b, m, n, heads * depth, heads * values, **more)
    model = attention("multiplied", mask, heads)
    program = compile_model(model, threads=threads)
    check(model, given, program=program)
    assert "attention" in kernels_of(program)


def test_one_program_of_many_sizes():
    """A prompt, then one token at a time."""
    model = attention("multiplied", "m, n")
    program = compile_model(model, threads=2)
    rng = np.random.default_rng(0)
    for m, n in ((64, 64), (1, 65), (1, 66), (3, 200), (200, 7)):
        check(model, feeds(rng, 1, m, n, 32, 32, mask=(m, n)), program=program)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize(
    "mask",
    [
        [0, -np.inf, 0, -np.inf, -np.inf],
        [-np.inf] * 5,
        [-3.4e38] * 5,
        [-3.4e38, 0, -3.4e38, 0, 0],
        [np.inf, 0, 0, 0, 0],
        [np.nan, 0, 0, 0, 0],
        [-1e4, -2e4, 1e4, 90, 0],
    ],
    ids=str,
)
def test_masks_at_the_end_of_the_range(rows, mask):
    """What is masked gets nothing; rows without any key are NaN, as the operators say."""
    model = attention("divided", "n", heads=2)
    given = feeds(np.random.default_rng(1), 1, rows, 5, 8, 6, mask=(5,))
    given["mask"] = np.array(mask, np.float32)
    check(model, given)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["qs", "ks", "vs"])
@pytest.mark.parametrize("rows", [2, 20])
def test_numbers_that_are_none(number, name, rows):
    model = attention("multiplied", heads=2)
    given = feeds(np.random.default_rng(2), 1, rows, 17, 8, 6)
    given[name][0, 1, 3] = number
    check(model, given)


def test_large_scores_do_not_overflow():
    model = attention()
    given = feeds(np.random.default_rng(3), 1, 30, 40, 16, 16)
    given["qs"] *= 100
    check(model, given, tolerance=1e-4)  # exp of a score of 1000, whose unit is 6e-5


@pytest.mark.parametrize("shapes", [*itertools.permutations([(2, 3), (1, 3), (2, 1)])])
def test_heads_that_broadcast(shapes):
    """Fewer heads of keys than of queries, as where groups of heads share them."""
    (b0, h0), (b1, h1), (b2, h2) = shapes
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[{b0}, {h0}, 6, 8] q, float[{b1}, {h1}, 8, 9] k, float[{b2}, {h2}, 9, 5] v)
        => (float[a, b, c, d] y)
    {{ s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(4)
    given = {
        "q": rng.standard_normal((b0, h0, 6, 8), np.float32),
        "k": rng.standard_normal((b1, h1, 8, 9), np.float32),
        "v": rng.standard_normal((b2, h2, 9, 5), np.float32),
    }
    check(model, given)


@pytest.mark.parametrize(
    ("m", "n", "d", "e"), [(7, 9, 8, 5), (0, 9, 8, 5), (7, 0, 8, 5), (7, 9, 8, 0)]
)
def test_three_dimensions(m, n, d, e):
    """Also where something is empty: without keys, the result is zeros."""
    text = """<ir_version: 9, opset_import: ["": 12]>
    g (float[h, m, d] q, float[h, n, d] k0, float[h, n, e] v) => (float[h, m, e] y) {
        k = Transpose<perm = [0, 2, 1]>(k0) s = MatMul(q, k) p = Softmax<axis = 2>(s)
        y = MatMul(p, v)
    }"""
    model = onnx.shape_inference.infer_shapes(parser.parse_model(text))
    rng = np.random.default_rng(5)
    given = {
        "q": rng.standard_normal((3, m, d), np.float32),
        "k0": rng.standard_normal((3, n, d), np.float32),
        "v": rng.standard_normal((3, n, e), np.float32),
    }
    program = compile_model(model)
    assert "attention" in kernels_of(program)
    if n:
        check(model, given, program=program)
    else:  # the evaluator has no largest of no scores
        np.testing.assert_array_equal(program.run(given)["y"], np.zeros((3, m, e), np.float32))


def test_casts_between_floats_are_looked_through():
    """Scores and mask are float32, the matmuls narrow: as mixed precision leaves them."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float16[2, 5, 7, 8] q, float16[2, 5, 8, 9] k, float16[2, 5, 9, 6] v, float[7, 9] mask)
        => (float16[2, 5, 7, 6] y)
    {
        s = MatMul(q, k) t = Mul(s, c) w = Cast<to = 1>(t) m = Add(w, mask) p = Softmax(m)
        n = Cast<to = 10>(p) y = MatMul(n, v)
    }"""
    model = parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float16([0.25]), "c"))
    model = onnx.shape_inference.infer_shapes(model)
    rng = np.random.default_rng(9)
    given = {
        "q": rng.standard_normal((2, 5, 7, 8)).astype(np.float16),
        "k": rng.standard_normal((2, 5, 8, 9)).astype(np.float16),
        "v": rng.standard_normal((2, 5, 9, 6)).astype(np.float16),
        "mask": np.where(rng.random((7, 9)) < 0.3, np.float32(-3.4e38), np.float32(0)),
    }
    # The evaluator rounds scores and weights to float16, whose unit is 1e-3; here nothing is.
    program = check(model, given, tolerance=4e-3)
    kernels = {plan.kernel for plan in program.explain()}
    assert kernels == {"attention", "attention in float32"}


def test_the_axis_of_softmax_before_operator_set_13():
    """Without one it is 1, and all axes from there on count as one: no attention."""
    text = """<ir_version: 7, opset_import: ["": 12]>
    g (float[2, 3, 4] q, float[2, 4, 5] k, float[2, 5, 6] v) => (float[2, 3, 6] y)
    { s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }"""
    rng = np.random.default_rng(10)
    shapes = {"q": (2, 3, 4), "k": (2, 4, 5), "v": (2, 5, 6)}
    given = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    scores = np.exp((given["q"] @ given["k"]).reshape(2, 15))
    weights = (scores / scores.sum(axis=1, keepdims=True)).reshape(2, 3, 5)
    program = compile_model(onnx.shape_inference.infer_shapes(parser.parse_model(text)))
    close(program.run(given)["y"], weights @ given["v"])
    assert "attention" not in kernels_of(program)


NOT_ONE = {
    "scores are an output": ("s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)", ", float[m, n] s"),
    "weights are read twice": (
        "s = MatMul(q, k) p = Softmax(s) a = MatMul(p, v) r = Relu(p) y = Add(a, r)",
        "",
    ),
    "another axis": ("s = MatMul(q, k) p = Softmax<axis = -2>(s) y = MatMul(p, v)", ""),
    "on the other side": ("s = MatMul(q, k) p = Softmax(s) y = MatMul(v, p)", ""),
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_near_misses_are_not_fused(name):
    body, more = NOT_ONE[name]
    more = more.replace("[m, n]", "[2, 6, 6]")
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[2, 6, 6] q, float[2, 6, 6] k, float[2, 6, 6] v) => (float[2, a, b] y{more})
    {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(6)
    given = {name: rng.standard_normal((2, 6, 6), np.float32) for name in "qkv"}
    program = check(model, given)
    assert "attention" not in kernels_of(program)


@pytest.mark.parametrize("target", ["plain", "avx2"])
@pytest.mark.parametrize("rows", [3, 61])
def test_code_for_other_cpus(target, rows, monkeypatch):
    """What CPUs with shorter vectors run."""
    monkeypatch.setattr(kernels, "TARGET", target)
    model = attention("multiplied", "m, n", heads=2)
    given = feeds(np.random.default_rng(8), 2, rows, 77, 34, 70, mask=(rows, 77))
    check(model, given)


@pytest.mark.parametrize("keys", [1, 16, 700, 3000, 100_000])
def test_blocks_are_no_longer_than_c_has_room_for(keys):
    dense = [0, 0, 0, 32, 1]
    params, _ = attention_params.attention(
        heads=(1, 1, 1),
        rows=500,
        keys=keys,
        depth=32,
        values=32,
        strides=[dense] * 3,
        out_strides=dense,
        scale=1.0,
        threads=1,
    )
    most = extension().lib.NP_ATTENTION_MAX_ROWS
    assert 0 < params.block <= most
    assert params.block == most or keys > 600


def test_threads_share_a_long_head():
    """One head, more threads: its rows are divided."""
    model = attention("multiplied", heads=1)
    given = feeds(np.random.default_rng(7), 1, 500, 300, 32, 32)
    one = compile_model(model, threads=1).run(given)["y"]
    for threads in (2, 4):
        close(compile_model(model, threads=threads).run(given)["y"], one)
    check(model, given, program=compile_model(model, threads=4))
