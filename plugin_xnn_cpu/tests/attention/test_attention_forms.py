"""Attention in the forms that exporters write today: masks, guards, heads that share keys."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import check, compile_model


def kernels_of(program, feeds):
    return [row.kernel for row in program.profile(feeds, runs=1)]


def model_of(body, inputs, output="float[b, h, m, e] y", constants="", opset=18):
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g ({inputs}) => ({output}) <float c = {{0.25}}, float low = {{-3.4e38}}, float zero = {{0}},
    float gone = {{-1000}}, int64[1] two = {{2}}, int64[1] one = {{1}}{constants}> {{ {body} }}"""
    return onnx.shape_inference.infer_shapes(parser.parse_model(text), data_prop=True)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


HEADS = "float[b, h, m, d] q, float[b, h, n, d] k0, float[b, h, n, e] v"
SCORES = "k = Transpose<perm = [0, 1, 3, 2]>(k0) s0 = MatMul(q, k) s = Mul(s0, c)"
GUARD = "isnan = IsNaN(p0) p = Where(isnan, zero, p0)"
MASKS = {
    "filled": "t = Where(mask, low, s)",
    "filled, not by the least number": "t = Where(mask, gone, s)",
    "kept": "t = Where(mask, s, low)",
}


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("shape", ["b, 1, 1, n", "m, n", "b, h, m, n", "b, h, m, 1", "n"])
@pytest.mark.parametrize("form", MASKS)
def test_masks_of_booleans(form, shape, rows):
    model = model_of(
        f"{SCORES} {MASKS[form]} p = Softmax<axis = -1>(t) y = MatMul(p, v)",
        f"{HEADS}, bool[{shape}] mask",
    )
    rng = np.random.default_rng(0)
    sizes = {"b": 2, "h": 3, "m": rows, "n": 37, "1": 1}
    feeds = {
        "q": normal(rng, 2, 3, rows, 8),
        "k0": normal(rng, 2, 3, 37, 8),
        "v": normal(rng, 2, 3, 37, 5),
        "mask": rng.random([sizes[dim] for dim in shape.split(", ")]) < 0.5,
    }
    program = check(model, feeds)
    assert "attention" in kernels_of(program, feeds)
    assert "where" not in kernels_of(program, feeds)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("order", ["t = Add(u, mask)", "t = Add(mask, u)"])
def test_two_masks_that_are_added(rows, order):
    """Position bias plus mask: their sum is computed once for both layers."""
    body = f"""{SCORES} u = Add(s, bias) {order} p = Softmax<axis = -1>(t) o = MatMul(p, v)
        z0 = MatMul(q, k) z1 = Add(z0, bias) z2 = Add(z1, mask) z3 = Softmax<axis = -1>(z2)
        o1 = MatMul(z3, v) y = Add(o, o1)"""
    model = model_of(body, f"{HEADS}, float[1, h, m, n] bias, float[b, 1, 1, n] mask")
    rng = np.random.default_rng(7)
    feeds = {"q": normal(rng, 2, 3, rows, 8), "k0": normal(rng, 2, 3, 9, 8)}
    feeds |= {"v": normal(rng, 2, 3, 9, 5), "bias": normal(rng, 1, 3, rows, 9)}
    feeds["mask"] = np.where(rng.random((2, 1, 1, 9)) < 0.5, -np.float32(3.4e38), np.float32(0))
    program = check(model, feeds)
    assert sorted(kernels_of(program, feeds)) == [*["attention"] * 2, *["xnn add"] * 2]


@pytest.mark.parametrize("rows", [2, 30])
@pytest.mark.parametrize("guard", [True, False])
def test_rows_without_keys(guard, rows):
    """With the guard they are zeros; without, NaN, as the operators say."""
    body = f"""{SCORES} f = Where(mask, zero, inf) t = Add(s, f) p0 = Softmax<axis = -1>(t)
        {GUARD if guard else "p = Identity(p0)"} y = MatMul(p, v)"""
    if not guard:
        body = body.replace("p = Identity(p0) y = MatMul(p, v)", "y = MatMul(p0, v)")
    model = model_of(body, f"{HEADS}, bool[m, n] mask")
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([-np.inf], np.float32), "inf")
    )
    rng = np.random.default_rng(1)
    feeds = {"q": normal(rng, 1, 2, rows, 8), "k0": normal(rng, 1, 2, 20, 8)}
    feeds |= {"v": normal(rng, 1, 2, 20, 6), "mask": rng.random((rows, 20)) < 0.5}
    feeds["mask"][1] = False
    program = check(model, feeds)
    assert "attention" in kernels_of(program, feeds)
    row = program.run(feeds)["y"][0, 0, 1]
    assert (row == 0).all() if guard else np.isnan(row).all()


SHARED = {
    # How each of the exporters writes heads of keys that are repeated.
    "Unsqueeze": """k1 = Unsqueeze(k0, two) k2 = Expand(k1, wide) k3 = Reshape(k2, merged)
        v1 = Unsqueeze(v0, two) v2 = Expand(v1, wide) v = Reshape(v2, merged)""",
    "Reshape": """k1 = Reshape(k0, spread) k2 = Expand(k1, wide) k3 = Reshape(k2, merged)
        v1 = Reshape(v0, spread) v2 = Expand(v1, wide) v = Reshape(v2, merged)""",
}
TURNED = {
    "Transpose": "k = Transpose<perm = [0, 1, 3, 2]>(k3)",
    "Reshape": """f = Concat<axis = 0>(rest, len, depth) k4 = Reshape(k3, f)
        k5 = Transpose<perm = [0, 2, 1]>(k4) lead = Slice(merged, nought, two)
        w = Concat<axis = 0>(lead, depth, len) k = Reshape(k5, w)""",
}
SIZES = """, int64[1] depth = {8}, int64[1] groups = {2}, int64[1] each = {3}, int64[1] heads = {6},
    int64[1] rest = {-1}, int64[1] nought = {0}, int64[5] spread = {0, 0, 1, -1, 8}"""
TARGETS = """len = Shape<start = 1, end = 2>(ids) batch = Shape<start = 0, end = 1>(ids)
    wide = Concat<axis = 0>(batch, groups, each, len, depth)
    merged = Concat<axis = 0>(batch, heads, len, depth)"""
GROUPS = "float[b, 6, m, 8] q, float[b, 2, n, 8] k0, float[b, 2, n, 8] v0, int64[b, n] ids"


def shared_feeds(rng, b, m, n, **more):
    feeds = {"q": normal(rng, b, 6, m, 8), "ids": np.zeros((b, n), np.int64)}
    return feeds | {name: normal(rng, b, 2, n, 8) for name in ("k0", "v0")} | more


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("mask", ["b, 1, m, n", "b, 6, m, n", "m, n", ""])
@pytest.mark.parametrize("rows", [1, 20])
def test_heads_that_share_keys(shared, turned, mask, rows):
    add = "t = Add(s, mask)" if mask else ""
    body = f"""{TARGETS} {SHARED[shared]} {TURNED[turned]} q1 = Mul(q, c) kc = Mul(k, c)
        s = MatMul(q1, kc) {add} p0 = Softmax<axis = -1>({"t" if mask else "s"}) {GUARD}
        y = MatMul(p, v)"""
    given = f", float[{mask}] mask" if mask else ""
    model = model_of(body, GROUPS + given, "float[b, 6, m, 8] y", SIZES)
    rng = np.random.default_rng(2)
    feeds = shared_feeds(rng, 2, rows, 33)
    if mask:
        sizes = {"b": 2, "m": rows, "n": 33}
        feeds["mask"] = normal(rng, *(sizes.get(d) or int(d) for d in mask.split(", ")))
    program = check(model, feeds)
    assert kernels_of(program, feeds) == ["attention"]


def test_expansion_of_more_than_heads():
    """One batch of keys, and one key, that are repeated for all."""
    body = f"""{TARGETS} {SHARED["Unsqueeze"]} {TURNED["Transpose"]} s = MatMul(q, k)
        p = Softmax<axis = -1>(s) y = MatMul(p, v)"""
    given = GROUPS.replace("float[b, 2, n, 8] k0", "float[1, 2, n, 8] k0")
    model = model_of(body, given.replace("[b, 2, n, 8] v0", "[b, 2, x, 8] v0"), constants=SIZES)
    rng = np.random.default_rng(3)
    feeds = shared_feeds(rng, 3, 5, 7)
    feeds["k0"], feeds["v0"] = normal(rng, 1, 2, 7, 8), normal(rng, 3, 2, 1, 8)
    program = check(model, feeds)
    assert kernels_of(program, feeds) == ["attention"]


def test_repetition_of_another_kind_is_none():
    """Heads 0 1 0 1 0 1, not 0 0 0 1 1 1: the new axis stands before the heads."""
    body = f"""{TARGETS} wider = Concat<axis = 0>(batch, each, groups, len, depth)
        k1 = Unsqueeze(k0, one) k2 = Expand(k1, wider) k3 = Reshape(k2, merged)
        v1 = Unsqueeze(v0, one) v2 = Expand(v1, wider) v = Reshape(v2, merged)
        k = Transpose<perm = [0, 1, 3, 2]>(k3) s = MatMul(q, k) p = Softmax<axis = -1>(s)
        y = MatMul(p, v)"""
    model = model_of(body, GROUPS, "float[b, 6, m, 8] y", SIZES)
    program = check(model, shared_feeds(np.random.default_rng(4), 2, 5, 7))
    assert "copy" in {plan.kernel for plan in program.explain()}


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("mask", ["m, n", "b, 2, 1, m, n", "b, 2, 3, m, n"])
def test_five_dimensions(mask, rows):
    """Groups of heads as an axis of their own; the result goes into the rows of a projection."""
    body = """q1 = Reshape(qs, split) q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
        q = Reshape(q2, groups5) k1 = Unsqueeze(k0, two) v = Unsqueeze(v0, two)
        k = Transpose<perm = [0, 1, 2, 4, 3]>(k1) s0 = MatMul(q, k) s = Mul(s0, c)
        t = Add(s, mask) p = Softmax<axis = -1>(t) o = MatMul(p, v) o4 = Reshape(o, flat)
        o3 = Transpose<perm = [0, 2, 1, 3]>(o4) y = Reshape(o3, joined)"""
    sizes = """, int64[4] split = {0, 0, 6, 8}, int64[5] groups5 = {0, 2, 3, -1, 8},
        int64[4] flat = {0, 6, -1, 8}, int64[3] joined = {0, 0, 48}"""
    given = "float[b, m, 48] qs, float[b, 2, n, 8] k0, float[b, 2, n, 8] v0, float[{}] mask"
    model = model_of(body, given.format(mask), "float[b, m, w] y", sizes)
    rng = np.random.default_rng(5)
    known = {"b": 2, "m": rows, "n": 11}
    feeds = {"qs": normal(rng, 2, rows, 48), "k0": normal(rng, 2, 2, 11, 8)}
    feeds["v0"] = normal(rng, 2, 2, 11, 8)
    feeds["mask"] = normal(rng, *(known.get(dim) or int(dim) for dim in mask.split(", ")))
    program = check(model, feeds)
    assert kernels_of(program, feeds) == ["attention"]


def test_keys_and_values_from_a_cache():
    """What is joined to the past is an output too."""
    body = """k1 = Concat<axis = 2>(past_k, k0) v1 = Concat<axis = 2>(past_v, v0)
        k = Transpose<perm = [0, 1, 3, 2]>(k1) s0 = MatMul(q, k) s = Mul(s0, c)
        p = Softmax<axis = -1>(s) y = MatMul(p, v1)"""
    past = "float[b, h, o, d] past_k, float[b, h, o, e] past_v"
    out = "float[b, h, m, e] y, float[b, h, n, d] k1, float[b, h, n, e] v1"
    model = model_of(body, f"{HEADS}, {past}", out)
    rng = np.random.default_rng(6)
    feeds = {"q": normal(rng, 1, 2, 1, 8), "k0": normal(rng, 1, 2, 1, 8)}
    feeds |= {"v": normal(rng, 1, 2, 1, 6), "v0": normal(rng, 1, 2, 1, 6)}
    model.graph.input[2].name = "v0"
    del feeds["v"]
    feeds |= {"past_k": normal(rng, 1, 2, 9, 8), "past_v": normal(rng, 1, 2, 9, 6)}
    program = check(model, feeds)
    assert set(kernels_of(program, feeds)) == {"attention and caches", "copy"}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 2),
    m=st.sampled_from([1, 2, 4, 17, 64]),
    n=st.sampled_from([1, 5, 16, 48, 130]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_sizes_of_groups(b, m, n, threads, seed):
    body = f"""{TARGETS} {SHARED["Unsqueeze"]} {TURNED["Transpose"]} s0 = MatMul(q, k)
        s = Div(s0, c) t = Where(mask, s, gone) p = Softmax<axis = -1>(t) y = MatMul(p, v)"""
    given = f"{GROUPS}, bool[b, 1, m, n] mask"
    model = model_of(body, given, "float[b, 6, m, 8] y", SIZES)
    rng = np.random.default_rng(seed)
    feeds = shared_feeds(rng, b, m, n, mask=rng.random((b, 1, m, n)) < 0.7)
    # Scores of up to 60, whose unit in the last place is 4e-6: exponentials are off by that.
    program = check(model, feeds, program=compile_model(model, threads=threads), tolerance=5e-5)
    assert "attention" in kernels_of(program, feeds)


@pytest.mark.parametrize("columns", [1, 4, 9])
@pytest.mark.parametrize("kind", ["float", "bool"])
def test_a_mask_of_fewer_columns_than_keys_is_padded(kind, columns):
    """One column, too: it is not broadcast. The oracle runs the operator's own function."""
    heads = "float[2, 3, 5, 8] q, float[2, 3, 9, 8] k0, float[2, 3, 9, 6] v"
    body, output = "y = Attention(q, k0, v, mask)", "float[2, 3, 5, 6] y"
    model = model_of(body, f"{heads}, {kind}[5, {columns}] mask", output, opset=23)
    rng = np.random.default_rng(columns)
    feeds = {"q": normal(rng, 2, 3, 5, 8), "k0": normal(rng, 2, 3, 9, 8)}
    feeds |= {"v": normal(rng, 2, 3, 9, 6), "mask": normal(rng, 5, columns)}
    if kind == "bool":
        feeds["mask"] = feeds["mask"] > -1
        feeds["mask"][:, 0] = True  # onnx's function divides 0 by 0 in a row without keys
    check(model, feeds, native=None, oracle="onnx")
