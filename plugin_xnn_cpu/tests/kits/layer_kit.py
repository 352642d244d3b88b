"""A decoder's layer of attention with caches, in several forms, and a loop on onnx's evaluator."""

from __future__ import annotations

import numpy as np
import onnx

WIDTH, HEADS, GROUPS, HEAD = 24, 4, 2, 6

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
layer (float[B, S, 24] x, float[B, 2, P, 6] past_k, float[B, 2, P, 6] past_v, MASK)
    => (float[B, S, 24] y, float[B, 2, T, 6] present_k, float[B, 2, T, 6] present_v)
    <int64[4] queries = {0, 0, 4, 6}, int64[4] keys = {0, 0, 2, 6}, int64[3] joined = {0, 0, 24},
     int64[1] two = {2}, int64[2] groups = {2, 2}, int64[1] four = {4}, int64[1] depth = {6},
     float scale = {0.40824829}, float one = {1.0}, float low = {-10000.0}> {
    q0 = MatMul(x, wq)
    q1 = Reshape(q0, queries)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul(x, wk)
    k1 = Reshape(k0, keys)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
    k = Concat <axis = 2> (past_k, k2)
    present_k = Identity(k)
    v0 = MatMul(x, wv)
    v1 = Reshape(v0, keys)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    v = Concat <axis = -2> (past_v, v2)
    present_v = Identity(v)
    ku = Unsqueeze(k, two)
    first = Shape <start = 0, end = 1> (k)
    rows = Shape <start = 2, end = 3> (k)
    spread = Concat <axis = 0> (first, groups, rows, depth)
    heads = Concat <axis = 0> (first, four, rows, depth)
    ke = Expand(ku, spread)
    kh = Reshape(ke, heads)
    vu = Unsqueeze(v, two)
    ve = Expand(vu, spread)
    vh = Reshape(ve, heads)
    t = Transpose <perm = [0, 1, 3, 2]> (kh)
    s0 = MatMul(q, t)
    s1 = Mul(s0, scale)
    MASKED
    p = Softmax <axis = -1> (s2)
    a0 = MatMul(p, vh)
    a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
    a2 = Reshape(a1, joined)
    o = MatMul(a2, wo)
    y = Add(x, o)
}
"""
ADDED = "float[S, T] mask", "s2 = Add(s1, mask)"
HEADS_APART = "float[B, 4, S, T] mask", "s2 = Add(s1, mask)"
NO_MASK = "float[1] unused", ""
KEPT = "bool[S, T] mask", "s2 = Where(mask, s1, low)"
COMPUTED = (
    "int64[B, T] mask",
    """m0 = Cast <to = 1> (mask) m1 = Sub(one, m0) m2 = Mul(m1, low)
    lead2 = Constant <value_ints = [1, 2]> () m3 = Unsqueeze(m2, lead2) s2 = Add(s1, m3)""",
)
FORMS = {"added": ADDED, "heads": HEADS_APART, "none": NO_MASK, "kept": KEPT, "computed": COMPUTED}


def text_of(form: str, old: str = "", new: str = "") -> str:
    """Return the text of a layer, with a part replaced."""
    declared, masked = FORMS[form]
    text = TEXT if masked else TEXT.replace("(s2)", "(s1)")
    assert old in text
    return text.replace(old, new).replace("MASKED", masked).replace("MASK", declared)


def decoder(form: str = "added") -> onnx.ModelProto:
    """Return a layer with grouped attention; `form` is the form of its mask."""
    model = onnx.parser.parse_model(text_of(form))
    rng = np.random.default_rng(0)
    for name, columns in (("wq", 24), ("wk", 12), ("wv", 12), ("wo", 24)):
        matrix = (rng.standard_normal((WIDTH, columns)) * WIDTH**-0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, name))
    return model


def feeds_of(form: str, rows: int, past: int, seed: int, batch: int = 1) -> dict[str, np.ndarray]:
    """Return feeds without caches: each row sees those before it, and some of them are masked."""
    rng = np.random.default_rng(seed)
    total = past + rows
    x = rng.standard_normal((batch, rows, WIDTH)).astype(np.float32)
    seen = np.arange(total)[None] <= past + np.arange(rows)[:, None]
    if form in ("added", "heads"):
        mask = np.where(seen, rng.standard_normal(seen.shape), -1e4).astype(np.float32)
        if form == "heads":
            mask = mask + rng.standard_normal((batch, HEADS, 1, 1)).astype(np.float32)
        return {"x": x, "mask": mask}
    if form == "kept":
        return {"x": x, "mask": seen}
    if form == "computed":
        mask = (rng.random((batch, total)) < 0.8).astype(np.int64)
        mask[:, 0] = 1
        return {"x": x, "mask": mask}
    return {"x": x, "unused": np.zeros(1, np.float32)}
