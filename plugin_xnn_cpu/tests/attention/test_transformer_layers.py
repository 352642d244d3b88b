"""Whole layers of transformers, as each exporter writes them: nothing of a known family is left.

The page on transformers has a table of what is recognised; a test here keeps it true.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from xnn_kit import check, fully_connected

from narrowpass_xnn_cpu.native import target

PAGE = Path(__file__).parents[3] / "docs/explanation/fast-path/transformers.md"

WIDTH, HEADS, GROUPS, DEPTH, HIDDEN = 24, 6, 2, 4, 40
CONSTANTS = """<float two = {2}, float one = {1}, float half = {0.5}, float three = {3},
    float epsilon = {0.00001}, float zero = {0}, float low = {-3.4e38}, float scale = {0.5},
    float root2 = {1.41421356}, float root8 = {0.70710678}, int64[1] last = {-1},
    int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2}, int64[1] most = {1000000},
    int64[1] fourth = {3}, int64[1] middle = {2}, int64[4] split = {0, 0, 6, 4},
    int64[4] shared = {0, 0, 2, 4}, int64[3] joined = {0, 0, 24}, int64[1] depth = {4},
    int64[1] heads = {6}, int64[1] groups = {2}, int64[1] each = {3}>"""

NORMS = {
    "LayerNormalization": "{y} = LayerNormalization({x}, g{n}, b{n})",
    "layer norm, nodes": """m{n} = ReduceMean({x}, last) d{n} = Sub({x}, m{n})
        s{n} = Pow(d{n}, two) v{n} = ReduceMean(s{n}, last) e{n} = Add(v{n}, epsilon)
        r{n} = Sqrt(e{n}) n{n} = Div(d{n}, r{n}) t{n} = Mul(n{n}, g{n}) {y} = Add(t{n}, b{n})""",
    "RMS norm, reciprocal": """s{n} = Pow({x}, two) v{n} = ReduceMean(s{n}, last)
        e{n} = Add(v{n}, epsilon) r{n} = Sqrt(e{n}) f{n} = Reciprocal(r{n})
        n{n} = Mul({x}, f{n}) {y} = Mul(g{n}, n{n})""",
    "RMS norm, one over": """s{n} = Pow({x}, two) v{n} = ReduceMean(s{n}, last)
        e{n} = Add(v{n}, epsilon) r{n} = Sqrt(e{n}) f{n} = Div(one, r{n})
        n{n} = Mul({x}, f{n}) {y} = Mul(g{n}, n{n})""",
}

PROJECTED = """q0 = MatMul(h, wq) q1 = Add(q0, bq) q2 = Reshape(q1, split)
    q = Transpose<perm = [0, 2, 1, 3]>(q2) k0 = MatMul(h, wk) k1 = Add(k0, bk)
    k2 = Reshape(k1, split) {keys} v0 = MatMul(h, wv) v1 = Add(v0, bv) v2 = Reshape(v1, split)
    v = Transpose<perm = [0, 2, 1, 3]>(v2)"""
SHARED = """q0 = MatMul(h, wq) q2 = Reshape(q0, split) q3 = Transpose<perm = [0, 2, 1, 3]>(q2)
    k0 = MatMul(h, wkg) k2 = Reshape(k0, shared) k3 = Transpose<perm = [0, 2, 1, 3]>(k2)
    v0 = MatMul(h, wvg) v2 = Reshape(v0, shared) v3 = Transpose<perm = [0, 2, 1, 3]>(v2)
    {turned} batch = Shape<start = 0, end = 1>(ids) len = Shape<start = 1, end = 2>(ids)
    wide = Concat<axis = 0>(batch, groups, each, len, depth)
    merged = Concat<axis = 0>(batch, heads, len, depth)
    k4 = Unsqueeze(kr, third) k5 = Expand(k4, wide) k6 = Reshape(k5, merged)
    v4 = Unsqueeze(v3, third) v5 = Expand(v4, wide) v = Reshape(v5, merged)"""
HALVES = """{x}_a = Slice({x}3, first, middle, fourth, second)
    {x}_b = Slice({x}3, middle, most, fourth, second) {x}_n = Neg({x}_b)
    {x}_t = Concat<axis = -1>({x}_n, {x}_a) {x}_c = Mul({x}3, cos) {x}_s = Mul({x}_t, sin)
    {out} = Add({x}_c, {x}_s)"""
ROTARY = HALVES.format(x="q", out="q") + " " + HALVES.format(x="k", out="kr")
TURNED_BY_RESHAPE = """l = Shape<start = 1, end = 2>(ids) f = Concat<axis = 0>(last, l, depth)
    k7 = Reshape({k}, f) k8 = Transpose<perm = [0, 2, 1]>(k7) sh = Shape({k})
    lead = Slice(sh, first, third) w = Concat<axis = 0>(lead, depth, l) kt = Reshape(k8, w)"""
SAFE = """mf = Where(mask, zero, low) sc = Add(s0, mf) p0 = Softmax<axis = -1>(sc)
    isnan = IsNaN(p0) p = Where(isnan, zero, p0) o0 = MatMul(p, v)"""
BOTH_SCALED = "qs = Mul(q, root8) kz = Mul(kt, root8) s0 = MatMul(qs, kz)"
AFTER = """o1 = Transpose<perm = [0, 2, 1, 3]>(o0) o2 = Reshape(o1, joined) o3 = MatMul(o2, wo)
    a = Add(x, o3)"""

ATTENTION = {
    "eager": PROJECTED.format(keys="kt = Transpose<perm = [0, 2, 3, 1]>(k2)")
    + """ z = MatMul(q, kt) s0 = Mul(z, scale) mf = Where(mask, zero, low) sc = Add(s0, mf)
    p = Softmax<axis = -1>(sc) o0 = MatMul(p, v)""",
    "scaled_dot_product_attention, TorchScript": PROJECTED.format(
        keys="kt = Transpose<perm = [0, 2, 3, 1]>(k2)"
    )
    + f" {BOTH_SCALED} {SAFE}",
    "scaled_dot_product_attention, dynamo": PROJECTED.format(
        keys="k = Transpose<perm = [0, 2, 1, 3]>(k2)"
    )
    + f" {TURNED_BY_RESHAPE.format(k='k')} {BOTH_SCALED} {SAFE}",
    "masked_fill": PROJECTED.format(keys="kt = Transpose<perm = [0, 2, 3, 1]>(k2)")
    + """ z = MatMul(q, kt) s0 = Div(z, two) no = Not(mask) sc = Where(no, low, s0)
    p = Softmax<axis = -1>(sc) o0 = MatMul(p, v)""",
    "repeated heads, rotary, TorchScript": SHARED.format(turned=ROTARY)
    + f" kt = Transpose<perm = [0, 1, 3, 2]>(k6) {BOTH_SCALED} {SAFE}",
    "repeated heads, rotary, dynamo": SHARED.format(turned=ROTARY)
    + f" {TURNED_BY_RESHAPE.format(k='k6')} {BOTH_SCALED} {SAFE}",
}

FEEDFORWARD = {
    "GELU": """u0 = MatMul(h2, w1) u1 = Add(u0, b1) u2 = Div(u1, root2) u3 = Erf(u2)
        u4 = Add(u3, one) u5 = Mul(u1, u4) u6 = Mul(u5, half) f0 = MatMul(u6, w2)""",
    "SwiGLU": """u0 = MatMul(h2, w1) u1 = Sigmoid(u0) u2 = Mul(u0, u1) u3 = MatMul(h2, w3)
        u4 = Mul(u2, u3) f0 = MatMul(u4, w2)""",
}

KNOWN = {fully_connected(), "attention", "layer-norm", "add + layer-norm", "rotary", "where"}
EPILOGUES = {"xnn add", "gelu", "xnn multiply", "gate"}
"""Fused into the epilogue of a matmul where the kernel is our own; a factor never is."""


def layer(norm, attention, feedforward):
    """Return a layer whose norms come first, as a model."""
    norms = NORMS[norm]
    body = f"""{norms.format(x="x", y="h", n="p")} {ATTENTION[attention]} {AFTER}
        {norms.format(x="a", y="h2", n="q")} {FEEDFORWARD[feedforward]} y = Add(a, f0)"""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[b, n, 24] x, int64[b, n] ids, bool[b, 1, n, n] mask, float[1, 1, n, 4] cos,
       float[1, 1, n, 4] sin) => (float[b, n, 24] y) {CONSTANTS} {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    shapes = {"gp": 24, "bp": 24, "gq": 24, "bq": 24, "bk": 24, "bv": 24, "b1": HIDDEN}
    weights = {"wq": 24, "wk": 24, "wv": 24, "wo": 24, "wkg": 8, "wvg": 8, "w1": HIDDEN}
    weights["w3"] = HIDDEN
    arrays = {name: rng.standard_normal(size) for name, size in shapes.items()}
    arrays |= {name: rng.standard_normal((24, size)) * 0.3 for name, size in weights.items()}
    arrays["w2"] = rng.standard_normal((HIDDEN, 24)) * 0.3
    for name, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds_of(b=2, n=7):
    rng = np.random.default_rng(1)
    angles = rng.random((1, 1, n, 4))
    feeds = {"x": rng.standard_normal((b, n, 24)), "cos": np.cos(angles), "sin": np.sin(angles)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    mask = rng.random((b, 1, n, n)) < 0.8
    mask[..., 0] = True
    return feeds | {"ids": np.zeros((b, n), np.int64), "mask": mask}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("feedforward", FEEDFORWARD)
def test_layers_run_as_fused_steps(norm, attention, feedforward):
    model, feeds = layer(norm, attention, feedforward), feeds_of()
    # Three matmuls in sequence: their errors add up.
    program = check(model, feeds, native=None, tolerance=3e-5)
    kernels = [row.kernel for row in program.profile(feeds, runs=1)]
    ours = target.current().has_fp32_gemm
    left = {"xnn multiply"} if ours and feedforward == "SwiGLU" else set() if ours else EPILOGUES
    assert not set(kernels) - KNOWN - {"not bool"} - left
    assert kernels.count("attention") == 1
    assert kernels.count("rotary") == (2 if "rotary" in attention else 0)
    assert kernels.count("layer-norm") + kernels.count("add + layer-norm") == 2
    # The last sum is what the norm of a next layer would take.
    assert kernels.count("xnn add") == (0 if ours else 1)


def test_the_page_names_every_recognised_form():
    text = PAGE.read_text(encoding="utf-8")
    for name in (*NORMS, *ATTENTION, *FEEDFORWARD):
        assert f"| {name} |" in text, name
