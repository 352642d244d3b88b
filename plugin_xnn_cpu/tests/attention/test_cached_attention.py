"""Attention that copies the caches which its keys and values begin with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass.runtime.meters import Extremes
from narrowpass_xnn_cpu.native import kernels

KERNEL = "attention and caches"
BODY = """k = Concat<axis = 2>(past_k, new_k) v = Concat<axis = 2>(past_v, new_v)
    t = Transpose<perm = [0, 1, 3, 2]>(k) s0 = MatMul(q, t) s1 = Mul(s0, c) s = Add(s1, mask)
    p = Softmax<axis = -1>(s) y = MatMul(p, v)"""


def model_of(body: str = BODY, outputs: str = "", mask: str = "m, n") -> onnx.ModelProto:
    """Return a model whose keys and values are outputs too."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[b, h, m, d] q, float[b, h, o, d] past_k, float[b, h, a, d] new_k,
       float[b, h, o, e] past_v, float[b, h, a, e] new_v, float[{mask}] mask)
      => (float[b, h, m, e] y, float[b, h, n, d] k, float[b, h, n, e] v{outputs})
    <float c = {{0.25}}> {{ {body} }}"""
    return parser.parse_model(text)


def feeds_of(heads, rows, past, new, depth, values, seed=0, batch=1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "q": (batch, heads, rows, depth),
        "past_k": (batch, heads, past, depth),
        "new_k": (batch, heads, new, depth),
        "past_v": (batch, heads, past, values),
        "new_v": (batch, heads, new, values),
    }
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["mask"] = np.zeros((rows, past + new), np.float32)
    found["mask"][:, : past // 3] = -1e9
    return found


def exact(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the outputs of `model_of` in float64."""
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    k = np.concatenate([wide["past_k"], wide["new_k"]], 2)
    v = np.concatenate([wide["past_v"], wide["new_v"]], 2)
    scores = wide["q"] @ k.swapaxes(2, 3) * 0.25 + wide["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"y": weights / weights.sum(-1, keepdims=True) @ v, "k": k, "v": v}


def close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Caches are copied bit for bit; a dot product over 80 elements is off by some 1e-6."""
    for name, value in wanted.items():
        if name in ("k", "v"):
            np.testing.assert_array_equal(found[name], value.astype(np.float32))
        else:
            most = np.abs(value).max(initial=0)
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * most)


def kernel_of(program, feeds) -> list[str]:
    return [row.kernel for row in program.profile(feeds, runs=1) if "attention" in row.kernel]


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 5),
    batch=st.integers(1, 2),
    rows=st.sampled_from([1, 2, 3, 4, 8, 9, 20]),
    past=st.sampled_from([1, 2, 15, 16, 17, 63, 130]),
    new=st.integers(1, 3),
    depth=st.sampled_from([1, 7, 16, 33, 64, 80]),
    values=st.sampled_from([1, 5, 16, 48, 64, 70]),
    threads=st.integers(1, 3),
)
def test_kernel_at_all_sizes(target, heads, batch, rows, past, new, depth, values, threads):
    feeds = feeds_of(heads, rows, past, new, depth, values, batch=batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", target)
        with compile_model(model_of(), threads=threads) as program:
            close(program.run(feeds), exact(feeds))
            assert kernel_of(program, feeds) == [KERNEL]


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@pytest.mark.parametrize("depth", [64, 72, 61])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_large_caches_are_written_past_the_processors(target, depth, threads, shift, monkeypatch):
    """Wherever the outputs start, and whatever the size of a row: only whole vectors are so."""
    monkeypatch.setattr(kernels, "TARGET", target)
    feeds = feeds_of(6, 1, 131, 1, depth, 64)
    memory = {name: np.full(6 * 132 * 72 + 64, 7, np.float32) for name in "kv"}
    sizes = {"k": depth, "v": 64}
    out = {
        name: memory[name][16 + shift : 16 + shift + 6 * 132 * size].reshape(1, 6, 132, size)
        for name, size in sizes.items()
    }
    with compile_model(model_of(), threads=threads) as program:
        close(program.run(feeds), exact(feeds))
        found = program.run(feeds, out=out)
        close(found, exact(feeds))
    for name, size in sizes.items():
        assert found[name] is out[name]
        assert (memory[name][: 16 + shift] == 7).all()
        assert (memory[name][16 + shift + 6 * 132 * size :] == 7).all()


def test_shapes_that_change():
    """Empty caches, no new rows, no queries, and many of them."""
    with compile_model(model_of(), threads=2) as program:
        for rows, past, new in (
            (1, 9, 1), (1, 10, 1), (1, 0, 1), (4, 0, 4), (1, 9, 1), (1, 9, 0), (0, 9, 2),
            (0, 9, 0), (30, 9, 30), (2, 9, 1), (1, 300, 1), (0, 0, 0), (1, 5, 1),
        ):  # fmt: skip
            feeds = feeds_of(3, rows, past, new, 16, 24)
            if past + new:
                close(program.run(feeds), exact(feeds))
            else:
                assert program.run(feeds)["k"].shape == (1, 3, 0, 16)


def test_nan_in_the_cache_reaches_its_head_only():
    feeds = feeds_of(2, 1, 40, 1, 16, 16)
    feeds["past_k"][0, 0, 30] = np.nan
    with compile_model(model_of()) as program:
        found = program.run(feeds)
    np.testing.assert_array_equal(found["k"][0, 0, :40], feeds["past_k"][0, 0])
    assert np.isnan(found["y"][0, 0]).all()
    close({"y": found["y"][:, 1]}, {"y": exact(feeds)["y"][:, 1]})


OTHERS = {
    "who reads the keys before": (
        "k = Concat<axis = 2>(past_k, new_k) z = Relu(k) " + BODY[BODY.index("v = ") :]
        .replace("MatMul(q, t)", "MatMul(q1, t)").replace("t = ", "q1 = Add(q, zero) t = "),
        ["attention"],
    ),
    "two that read the same": (
        BODY + " s2 = MatMul(new_k, t) p2 = Softmax<axis = -1>(s2) z = MatMul(p2, v)",
        [KERNEL, "attention"],
    ),
    "who reads the keys after": (BODY + " z0 = Mul(k, k) z = Exp(z0)", [KERNEL]),
}  # fmt: skip


@pytest.mark.parametrize("body", OTHERS)
def test_others_read_keys_and_values_too(body):
    text, wanted = OTHERS[body]
    if "zero" in text:
        # The queries depend on a value computed from the keys.
        text = text.replace("z = Relu(k)", "z = Relu(k) zero = ReduceMin<keepdims = 1>(z)")
    model = model_of(text, ", float[b, h, i, j] z")
    feeds = feeds_of(2, 1, 20, 1, 16, 16)
    names = [value.name for value in model.graph.output]
    right = dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))
    with compile_model(model) as program:
        close(program.run(feeds), right)
        assert kernel_of(program, feeds) == wanted


def test_values_that_are_observed_are_whole():
    model = model_of()
    feeds = feeds_of(2, 1, 20, 1, 16, 16)
    keys = exact(feeds)["k"]
    with compile_model(model, keep=("k",), observe=True) as program:
        # What is observed is copied before.
        assert kernel_of(program, feeds) == ["attention"]
        meter = Extremes()
        program.observe(feeds, {"k": meter})
    keys = keys.astype(np.float32)
    assert (meter.low, meter.high) == (keys.min(), keys.max())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_keys(rows, groups):
    """Of one token they are rows of one head; of several tokens, caches are copied first."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[1, 4, m, 16] q, float[1, {groups}, o, 16] past_k, float[1, {groups}, a, 16] new_k,
       float[1, {groups}, o, 16] past_v, float[1, {groups}, a, 16] new_v, float[m, n] mask)
      => (float[1, 4, m, 16] y, float[1, {groups}, n, 16] k, float[1, {groups}, n, 16] v)
    <float c = {{0.25}}, int64[1] two = {{2}}, int64[4] flat = {{0, 4, -1, 16}},
     int64[5] split = {{0, {groups}, {4 // groups}, -1, 16}}> {{
        q1 = Reshape(q, split) k = Concat<axis = 2>(past_k, new_k)
        v = Concat<axis = 2>(past_v, new_v) k1 = Unsqueeze(k, two) v1 = Unsqueeze(v, two)
        t = Transpose<perm = [0, 1, 2, 4, 3]>(k1) s0 = MatMul(q1, t) s1 = Mul(s0, c)
        s = Add(s1, mask) p = Softmax<axis = -1>(s) y0 = MatMul(p, v1) y = Reshape(y0, flat) }}"""
    model = parser.parse_model(text)
    feeds = feeds_of(groups, rows, 33, rows, 16, 16)
    feeds["q"] = np.random.default_rng(3).standard_normal((1, 4, rows, 16)).astype(np.float32)
    each = 4 // groups
    wide = {**feeds}
    for name in ("past_k", "new_k", "past_v", "new_v"):
        wide[name] = np.repeat(feeds[name], each, 1)
    right = exact(wide)
    right["k"], right["v"] = right["k"][:, ::each], right["v"][:, ::each]
    with compile_model(model, threads=2) as program:
        close(program.run(feeds), right)


GROUPED = """k = Concat<axis = 2>(past_k, new_k) v = Concat<axis = 2>(past_v, new_v)
    k5 = Unsqueeze(k, two) v5 = Unsqueeze(v, two) t = Transpose<perm = [0, 1, 2, 4, 3]>(k5)
    s0 = MatMul(q, t) s1 = Mul(s0, c) s = Add(s1, mask) p = Softmax<axis = -1>(s)
    y = MatMul(p, v5)"""


def grouped_model(body: str = GROUPED, outputs: str = "") -> onnx.ModelProto:
    """Return a model whose keys and values get an axis for the query heads that share them."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[b, h, g, m, d] q, float[b, h, o, d] past_k, float[b, h, a, d] new_k,
       float[b, h, o, e] past_v, float[b, h, a, e] new_v, float[m, n] mask)
      => (float[b, h, g, m, e] y, float[b, h, n, d] k, float[b, h, n, e] v{outputs})
    <float c = {{0.25}}, int64[1] two = {{2}}> {{ {body} }}"""
    return parser.parse_model(text)


def grouped_feeds(shared: int, heads: int, rows: int, past: int, depth: int) -> dict[str, Any]:
    feeds = feeds_of(heads, rows, past, 1, depth, depth)
    q = np.random.default_rng(1).standard_normal((1, heads, shared, rows, depth))
    return feeds | {"q": q.astype(np.float32)}


def grouped_exact(feeds: dict[str, Any]) -> dict[str, Any]:
    each = [exact(feeds | {"q": feeds["q"][:, :, g]}) for g in range(feeds["q"].shape[2])]
    return each[0] | {"y": np.stack([found["y"] for found in each], 2)}


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shared=st.sampled_from([1, 2, 3, 4, 8, 9]),
    heads=st.integers(1, 3),
    rows=st.integers(1, 3),
    past=st.sampled_from([1, 16, 63, 130, 700]),
    depth=st.sampled_from([1, 16, 33, 64]),
    threads=st.integers(1, 3),
)
def test_caches_behind_an_axis_for_shared_heads(target, shared, heads, rows, past, depth, threads):
    """Keys and values are copied while they are read, for all query heads that share them."""
    feeds = grouped_feeds(shared, heads, rows, past, depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", target)
        with compile_model(grouped_model(), threads=threads) as program:
            close(program.run(feeds), grouped_exact(feeds))
            assert kernel_of(program, feeds) == [KERNEL]


@pytest.mark.parametrize("place", ["before", "after"])
def test_other_readers_of_shared_keys_see_all_of_them(place):
    """Whether they read what was concatenated or the view of it, before attention or after it."""
    other = "r = Relu(k) w = Neg(k5) "
    body = GROUPED.replace("s0 =", f"{other} s0 =") if place == "before" else GROUPED + other
    outputs = ", float[b, h, n, d] r, float[b, h, o1, n, d] w"
    feeds = grouped_feeds(3, 2, 1, 40, 16)
    with compile_model(grouped_model(body, outputs)) as program:
        found = program.run(feeds)
    wanted = grouped_exact(feeds)
    close({name: found[name] for name in wanted}, wanted)
    k = wanted["k"].astype(np.float32)
    np.testing.assert_array_equal(found["r"], np.maximum(k, 0))
    np.testing.assert_array_equal(found["w"], -k[:, :, None])


def test_steps_of_one_shape_with_other_attributes_are_sized_apart():
    """Equal steps share their sizes; steps with another scale or axis do not."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[1, 2, n, n] q, float[1, 2, n, n] k, float[1, 2, n, n] v)
      => (float[1, 2, n, n] y, float[1, 2, n, n] z, float[1, 2, i, n] a, float[1, 2, n, j] b)
    <float c = {0.25}, float d = {0.75}> {
        t = Transpose<perm = [0, 1, 3, 2]>(k)
        s0 = MatMul(q, t) s = Mul(s0, c) p = Softmax<axis = -1>(s) y = MatMul(p, v)
        r0 = MatMul(q, t) r = Mul(r0, d) o = Softmax<axis = -1>(r) z = MatMul(o, v)
        a = Concat<axis = 2>(q, k) b = Concat<axis = 3>(q, k) }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(4)
    names = [value.name for value in model.graph.output]
    with compile_model(model) as program:
        for n in (6, 7):
            feeds = {name: rng.standard_normal((1, 2, n, n)).astype(np.float32) for name in "qkv"}
            right = dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))
            close(program.run(feeds), right)
