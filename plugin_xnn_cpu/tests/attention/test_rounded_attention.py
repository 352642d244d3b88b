"""Attention whose operands may be rounded to bfloat16, beside numpy in float64.

A score is off by half a unit (2^-9) of q and of k in each of its terms, an exponential and a value
by as much of itself. `expected` adds up what follows for each element of the result.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import compile_model

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_xnn_cpu.native import attention_params, kernels, target
from narrowpass_xnn_cpu.native.library import extension

HALF_UNIT = 2.0**-9
SLACK = 1.05
"""Of second-order terms, float32 accumulators and the polynomial."""

needs_tiles = pytest.mark.skipif(
    not target.current().has_amx, reason="no AMX in use on this processor"
)


def attention(heads: int, groups: int, depth: int, values: int, mask: str = "", **changes: str):
    """Return a model of [b, heads, m, depth] and [b, groups, n, ..] whose matmuls may round."""
    each = heads // groups
    masks = {
        "": ("", "t = Identity(s)"),
        "added": (", float[m, n] mask", "t = Add(s, mask)"),
        "causal": (", float[m, n] mask", "t = Add(s, mask)"),
        "window_size": (", float[m, n] mask", "t = Add(s, mask)"),
        "kept": (", bool[b, 1, m, n] mask", "t = Where(mask, s, low)"),
        "column": (", float[m, 1] mask", "t = Add(s, mask)"),
    }
    given, masked = masks[mask]
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[b, {heads}, m, {depth}] q, float[b, {groups}, n, {depth}] k,
       float[b, {groups}, n, {values}] v{given}) => (float[b, {heads}, m, {values}] y)
    <float c = {{{depth**-0.5!r}}}, float low = {{-3.4e38}}, int64[1] two = {{2}},
     int64[2] spread = {{{groups}, {each}}}, int64[1] wide = {{{heads}}}>
    {{
        first = Shape<start = 0, end = 1>(k) ks = Shape<start = 2>(k) vs = Shape<start = 2>(v)
        k5 = Concat<axis = 0>(first, spread, ks) v5 = Concat<axis = 0>(first, spread, vs)
        k4 = Concat<axis = 0>(first, wide, ks) v4 = Concat<axis = 0>(first, wide, vs)
        ku = Unsqueeze(k, two) ke = Expand(ku, k5) kh = Reshape(ke, k4)
        vu = Unsqueeze(v, two) ve = Expand(vu, v5) vh = Reshape(ve, v4)
        kt = Transpose<perm = [0, 1, 3, 2]>(kh)
        s0 = MatMul(q, kt) s = Mul(s0, c) {masked} p = Softmax<axis = -1>(t) y = MatMul(p, vh)
    }}"""
    model = parser.parse_model(text)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            request = changes.get(node.output[0], "bfloat16")
            node.metadata_props.add(key=ACTIVATIONS, value=request)
    if not mask:
        (identity,) = [node for node in model.graph.node if node.op_type == "Identity"]
        (softmax,) = [node for node in model.graph.node if node.op_type == "Softmax"]
        softmax.input[0] = identity.input[0]
        model.graph.node.remove(identity)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds(rng, b, heads, groups, m, n, depth, values, mask=""):
    """Return standard normal operands; masks hide a third of the keys, never the first."""
    shapes = {"q": (b, heads, m, depth), "k": (b, groups, n, depth), "v": (b, groups, n, values)}
    found = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    if mask == "added":
        hidden = rng.random((m, n)) < 1 / 3
        hidden[:, 0] = False
        added = rng.standard_normal((m, n))
        found["mask"] = np.where(hidden, -np.inf, added).astype(np.float32)
    elif mask in ("causal", "window_size"):
        ahead = np.arange(n) - np.arange(m)[:, None] - max(0, n - m)
        hidden = (ahead > 0) | ((ahead < -40) & (mask == "window_size"))
        hidden[hidden.all(axis=1), 0] = False
        found["mask"] = np.where(hidden, -np.inf, 0.0).astype(np.float32)
    elif mask == "kept":
        found["mask"] = rng.random((b, 1, m, n)) < 2 / 3
    elif mask == "column":
        found["mask"] = rng.standard_normal((m, 1)).astype(np.float32)
    return found


def expected(given: dict[str, np.ndarray]):
    """Return the result of float64, and the bound of its error by rounding operands."""
    each = given["q"].shape[1] // given["k"].shape[1]
    q = given["q"].astype(np.float64) * given["q"].shape[-1] ** -0.5
    k, v = (np.repeat(given[name].astype(np.float64), each, 1) for name in "kv")
    scores = q @ k.swapaxes(2, 3)
    off = 2 * HALF_UNIT * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    mask = given.get("mask")
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, np.float32(-3.4e38))
        off = np.where(mask, off, 0.0)
    elif mask is not None:
        scores = scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    # A weight is off by what its score is, and by what all scores change the divisor.
    off += (weights * off).sum(-1, keepdims=True) + 2 * HALF_UNIT
    return weights @ v, SLACK * ((weights * off) @ np.abs(v)) + 1e-6 * np.abs(v).max()


def assert_within(found: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> None:
    """Assert that no error is larger than its bound."""
    error = np.abs(found - wanted)
    assert np.all(error <= bound), float((error / bound).max())


BORDERS = st.sampled_from(
    [1, 2, 15, 16, 17, 31, 32, 33, 34, 48, 49, 63, 64, 65, 100, 255, 257, 300]
)


@needs_tiles
@settings(max_examples=160, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (2, 2)]),
    m=BORDERS,
    n=BORDERS,
    depth=st.sampled_from([1, 2, 3, 16, 17, 31, 32, 33, 64, 80, 128]),
    values=st.sampled_from([1, 5, 16, 17, 32, 33, 64, 80]),
    mask=st.sampled_from(["", "added", "causal", "window_size", "kept", "column"]),
    threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_kernel_at_all_sizes(b, heads, m, n, depth, values, mask, threads, seed):
    model = attention(*heads, depth, values, mask)
    given = feeds(np.random.default_rng(seed), b, *heads, m, n, depth, values, mask)
    with compile_model(model, threads=threads) as program:
        (found,) = program.run(given).values()
    assert_within(found, *expected(given))


@needs_tiles
def test_wide_heads_and_many_rows():
    """Heads of 256, several blocks of keys, and more heads than are packed at a time."""
    for heads, groups, m, n, depth in ((2, 1, 70, 900, 256), (12, 12, 40, 6000, 64)):
        model = attention(heads, groups, depth, depth, "added")
        given = feeds(np.random.default_rng(0), 1, heads, groups, m, n, depth, depth, "added")
        with compile_model(model, threads=2) as program:
            (found,) = program.run(given).values()
        wanted, bound = expected(given)
        assert_within(found, wanted, bound)
        # Errors of many terms cancel out.
        rms = float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))
        assert 1e-5 < rms < 4 * HALF_UNIT


@needs_tiles
@pytest.mark.parametrize(
    "row",
    [
        [-np.inf] * 5,
        [-3.4e38] * 5,
        [-3.4e38, 0, -3.4e38, 0, 0],
        [np.inf, 0, 0, 0, 0],
        [np.nan, 0, 0, 0, 0],
        [-1e4, -2e4, 1e4, 90, 0],
        [0, -np.inf, 0, -np.inf, -np.inf],
    ],
)
def test_masks_that_hide_all_or_are_not_finite(row):
    """As softmax has it: nothing but -infinity, and NaN, yield NaN; equal scores equal weights."""
    model = attention(2, 1, 16, 16, "added")
    given = feeds(np.random.default_rng(1), 1, 2, 1, 40, 5, 16, 16, "added")
    given["mask"][:] = 0.0
    given["mask"][7] = row
    with compile_model(model) as program, np.errstate(all="ignore"):
        (found,) = program.run(given).values()
        scores = given["q"] @ given["k"].swapaxes(2, 3) * np.float32(0.25) + given["mask"]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = weights / weights.sum(-1, keepdims=True) @ given["v"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.nanmax(np.abs(wanted)))


@needs_tiles
@pytest.mark.parametrize("mask", ["causal", "window_size"])
def test_keys_that_a_mask_hides_from_blocks_are_left_out(mask):
    """What no row of a block sees is not read; rows that see nothing are NaN."""
    rows, keys = 200, 700
    given = feeds(np.random.default_rng(5), 1, 4, 2, rows, keys, 64, 64, mask)
    given["k"][0, :, 690:] = given["v"][0, :, 690:] = np.nan  # seen by the last ten rows alone
    with compile_model(attention(4, 2, 64, 64, mask), threads=2) as program:
        (found,) = program.run(given).values()
        finite = {name: x[:, :, :690] for name, x in given.items() if name in ("k", "v")}
        finite |= {"q": given["q"][:, :, :190], "mask": given["mask"][:190, :690]}
        wanted, bound = expected(finite)
        assert_within(found[:, :, :160], wanted[:, :, :160], bound[:, :, :160])
        assert np.isnan(found[:, :, 190:]).all()
        given["mask"][:64] = -np.inf
        (found,) = program.run(given).values()
    assert np.isnan(found[:, :, :64]).all()
    assert_within(found[:, :, 64:160], wanted[:, :, 64:160], bound[:, :, 64:160])


@needs_tiles
def test_later_blocks_with_larger_scores():
    """Each block of keys has larger scores than the one before, or smaller ones."""
    for sign in (1, -1):
        given = feeds(np.random.default_rng(2), 1, 1, 1, 33, 1024, 32, 32, "added")
        given["mask"][:] = sign * np.linspace(-50, 50, 1024, dtype=np.float32)
        with compile_model(attention(1, 1, 32, 32, "added")) as program:
            (found,) = program.run(given).values()
        assert_within(found, *expected(given))


@needs_tiles
def test_the_number_of_threads_changes_no_bit():
    given = feeds(np.random.default_rng(3), 1, 9, 3, 150, 700, 64, 64)
    found = []
    for threads in (1, 2, 5):
        with compile_model(attention(9, 3, 64, 64), threads=threads) as program:
            found += program.run(given).values()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def kernels_of(model) -> set[str]:
    with compile_model(model) as program:
        return {part.kernel for part in program.explain() if part.node in ("s0", "y")}


def test_explain_says_what_is_rounded():
    rounded = " in bfloat16 from 33 rows on" if target.current().has_amx else ""
    assert kernels_of(attention(2, 1, 16, 16)) == {f"attention{rounded}"}
    # Both matmuls must accept it.
    assert kernels_of(attention(2, 1, 16, 16, s0="")) == {"attention"}
    assert kernels_of(attention(2, 1, 16, 16, y="float")) == {"attention"}


@pytest.mark.parametrize("level", ["plain", "avx2", "avx512", "avx512bf16"])
def test_levels_without_tiles_round_nothing(level, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", level)
    assert kernels_of(attention(2, 1, 16, 16)) == {"attention"}
    _assert_unrounded(attention(2, 1, 16, 16), 60)


def test_few_rows_and_models_without_the_request_round_nothing():
    _assert_unrounded(attention(2, 1, 16, 16), attention_params.MOST_UNROUNDED_ROWS)
    _assert_unrounded(attention(2, 1, 16, 16, s0="", y=""), 60)


def _assert_unrounded(model, rows: int) -> None:
    given = feeds(np.random.default_rng(4), 1, 2, 1, rows, 90, 16, 16)
    with compile_model(model) as program:
        (found,) = program.run(given).values()
    wanted, _ = expected(given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_rows_that_are_read_once_are_those_of_caches():
    assert attention_params.MOST_UNROUNDED_ROWS == extension().lib.NP_CACHE_MAX_ROWS
