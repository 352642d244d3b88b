"""Models that an earlier version turned invalid, or into NaN, found by trying to break it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import narrowpass

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = RNG.standard_normal((8, 8)).astype(np.float32)
LEAST = np.full((4, 8), -3e38, np.float32)


def rewritten(text, constants=None, pipeline="fp16", **options):
    """Rewrite a model; it is checked, and a second run changes nothing."""
    model = parser.parse_model(text)
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(model, full_check=True)

    def build(proto):
        bundle = narrowpass.build(ir.from_proto(proto), pipeline, target="reference", **options)
        return ir.to_proto(bundle.methods["main"])

    narrowed = build(model)
    onnx.checker.check_model(narrowed, full_check=True)
    assert build(narrowed).SerializeToString() == narrowed.SerializeToString()
    return model, narrowed


def same(model, narrowed, feeds, tolerance=1e-2):
    right, got = (ReferenceEvaluator(proto).run(None, feeds)[0] for proto in (model, narrowed))
    assert got.dtype == right.dtype
    np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance * np.abs(right).max())


MASKED = """<ir_version: 8, opset_import: ["": 18]>
g (float[4,8] x, float[4,8] mk) => (float[4,8] y) {
    s = MatMul(x, w) %s p = Softmax(a) y = MatMul(p, w)
}"""
MASKS = {
    "taken away": "b = Mul(mk, big) a = Sub(s, b)",
    "taken away from what has a bias": "b = Mul(mk, big) c = Add(s, bias) a = Sub(c, b)",
    "of two factors": "b = Mul(mk, big) c = Add(mk, tiny) d = Mul(b, c) a = Sub(s, d)",
    "a triangle": "b = Trilu<upper = 1>(m) a = Add(s, b)",
    "the smaller": "b = Min(mk, m) a = Add(s, b)",
    "a constant of a shape": (
        "sh = Shape(s) b = ConstantOfShape<value = float[1] {-3e38}>(sh) c = Mul(b, mk) "
        "a = Add(s, c)"
    ),
    "clipped": "b0 = Neg(mk) b1 = Mul(b0, big) b = Clip(b1, lo) a = Add(s, b)",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    constants = {"w": W, "big": np.float32(3e38), "m": LEAST, "lo": np.float32(-3e38)}
    constants |= {"bias": np.float32(0.1), "tiny": np.float32(0.01)}
    read = set(re.findall(r"\w+", MASKS[name])) | {"w"}
    constants = {key: array for key, array in constants.items() if key in read}
    model, narrowed = rewritten(MASKED % MASKS[name], constants)
    same(model, narrowed, {"x": X[:4], "mk": np.ones((4, 8), np.float32)})


BORDERS = {
    "a branch": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[4,8] x, bool c) => (float[4,8] y) {
        s = MatMul(x, w)
        a = If(c) <then_branch = t () => (float[4,8] u) { u = Identity(m) },
                   else_branch = e () => (float[4,8] v) { v = Relu(s) }>
        p = Softmax(a) y = MatMul(p, w) }""",
        {"c": np.array(True)},
    ),
    "a loop": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[4,8] x, int64 M) => (float[4,8] y) {
        s = MatMul(x, w) t = Constant<value = bool {1}>()
        r = Loop(M, t, m) <body = b (int64 i, bool c, float[4,8] r0) => (bool c2, float[4,8] r1)
        { c2 = Identity(c) r1 = Min(r0, s) }> p = Softmax(r) y = MatMul(p, w) }""",
        {"M": np.array(1)},
    ),
    "a function": (
        """<ir_version: 8, opset_import: ["": 18, "d": 1]> g (float[4,8] x) => (float[4,8] y) {
        s = MatMul(x, w) p = d.F(s, m) y = MatMul(p, w) }
        <domain: "d", opset_import: ["": 18]> F (s, m) => (o) { a = Add(s, m) o = Softmax(a) }""",
        {},
    ),
}


@pytest.mark.parametrize("name", BORDERS)
def test_masks_that_enter(name):
    text, feeds = BORDERS[name]
    model, narrowed = rewritten(text, {"w": W, "m": LEAST})
    same(model, narrowed, {"x": X[:4], **feeds})


ROTARY = """<ir_version: 10, opset_import: ["": 22]>
g (float[1,S,64] x, int64[1,1,S] pos) => (float[1,S,64] y) {
q = MatMul(x, w) p = Cast<to = 1>(pos) fr = MatMul(inv, p) ft = Transpose<perm = [0, 2, 1]>(fr)
e = Concat<axis = 2>(ft, ft) c = Cos(e) s = Sin(e) a = Mul(q, c) b = Mul(q, s) t = Add(a, b)
y = MatMul(t, w) }"""


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 3e-3), ("bfloat16", 2e-2)])
def test_angles_of_late_positions(dtype, tolerance):
    """Rounded, an angle of 2000 is off by half a turn and more."""
    frequencies = (1 / 10000 ** (np.arange(0, 64, 2) / 64)).astype(np.float32).reshape(1, 32, 1)
    weight = (RNG.standard_normal((64, 64)) / 8).astype(np.float32)
    constants = {"w": weight, "inv": frequencies}
    model, narrowed = rewritten(ROTARY, constants, f"fp16{{dtype={dtype}}}")
    x = RNG.standard_normal((1, 20, 64)).astype(np.float32)
    feeds = {"x": x, "pos": np.arange(1980, 2000).reshape(1, 1, 20)}
    if dtype == "bfloat16":
        return  # onnx's evaluator cannot multiply these; that it is valid is checked above
    same(model, narrowed, feeds, tolerance)


VALID = {
    "RMSNormalization": (
        """<ir_version: 10, opset_import: ["": 23]> g (float[4,8] a, float[8] s) => (float[4,8] y)
        { r = RMSNormalization(a, s) q = MatMul(r, w) y = Exp(q) }""",
        {"a": X[:4], "s": np.ones(8, np.float32)},
    ),
    "a kernel window": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[8,8] a) => (float[8,8] y)
        { h = HannWindow(n) q = MatMul(a, w) z = Mul(q, h) y = MatMul(z, w) }""",
        {"a": X},
    ),
    "EyeLike": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[8,8] a) => (float[8,8] y)
        { h = EyeLike<dtype = 1>(a) y = MatMul(h, w) }""",
        {"a": X},
    ),
    "an optional": (
        """<ir_version: 8, opset_import: ["": 18]> g (float[8,8] a) => (float[8,8] y)
        { q = MatMul(a, w) h = OptionalGetElement(q) y = Exp(h) }""",
        {"a": X * 0.1},
    ),
    "DequantizeLinear 23": (
        """<ir_version: 10, opset_import: ["": 23]> g (float[8,8] a) => (float[8,8] y) {
        q0 = MatMul(a, a) d = DequantizeLinear(wq, sc) e = Exp(d) z = Add(e, q0) q = MatMul(z, d)
        y = Exp(q) }""",
        {"a": X * 0.1},
    ),
    "a function in a map": (
        """<ir_version: 8, opset_import: ["": 18, "d": 1]> g (float[8,8] a) => (float[8,8] y) {
        q = MatMul(a, w) f = d.F(q) sq = SequenceConstruct(a, a)
        so = SequenceMap(sq) <body = b (float[8,8] e) => (float[8,8] eo) { eo = d.F(e) }>
        b1 = SequenceAt(so, zero) y = Add(b1, f) }
        <domain: "d", opset_import: ["": 18]> F (s) => (o) { o = Relu(s) }""",
        {"a": X},
    ),
    "a function in a branch": (
        """<ir_version: 10, opset_import: ["": 18, "d": 1]>
        g (float[8,8] a, bool c) => (float[8,8] y) { q = MatMul(a, w) f = d.F(q) gg = MatMul(f, w)
        z = If(c) <then_branch = t () => (float[8,8] u) { u = d.F(q) },
                   else_branch = e () => (float[8,8] v) { v = d.F(q) }>
        y = MatMul(z, gg) }
        <domain: "d", opset_import: ["": 18]> F (s) => (o) { o = Relu(s) }""",
        {"a": X, "c": np.array(True)},
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_types_fit(name):
    text, feeds = VALID[name]
    constants = {
        "w": W,
        "n": np.array(8),
        "zero": np.array(0),
        "sc": np.float32(0.01),
        "wq": np.ones((8, 8), np.int8),
    }
    used = {
        key: value for key, value in constants.items() if f"{key})" in text or f"{key}," in text
    }
    model, narrowed = rewritten(text, used)
    same(model, narrowed, feeds, 2e-2)


def test_control_flow_without_bfloat16():
    """If has it from operator set 16 on."""
    text = """<ir_version: 8, opset_import: ["": 14]> g (float[8,8] x, bool c) => (float[8,8] y) {
    q = MatMul(x, w)
    z = If(c) <then_branch = t () => (float[8,8] a) { a = MatMul(q, w) },
               else_branch = e () => (float[8,8] b) { b = MatMul(w, q) }>
    y = MatMul(z, w) }"""
    rewritten(text, {"w": W}, "fp16{dtype=bfloat16}")


def test_inputs_are_seen_on_the_data():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4,8] x) => (float[4,8] y)
    { y = MatMul(x, w) }"""
    feeds = {"x": np.full((4, 8), 1e5, np.float32)}
    model, narrowed = rewritten(
        text, {"w": np.eye(8, dtype=np.float32) * 1e-3}, calibration=[feeds]
    )
    same(model, narrowed, feeds)


def test_a_call_that_is_red():
    text = """<ir_version: 8, opset_import: ["": 18, "d": 1]> g (float[8,8] x) => (float[8,8] y) {
    q = MatMul(x, w) [call] f = d.F(q) y = MatMul(f, w) }
    <domain: "d", opset_import: ["": 18]> F (s) => (o) { o = Relu(s) }"""
    _, narrowed = rewritten(text, {"w": W}, "fp16{red=[call]}")
    casts = [node.op_type for node in narrowed.graph.node].count("Cast")
    assert casts == 4  # around the call too
