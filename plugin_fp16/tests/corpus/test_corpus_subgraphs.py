"""Branches, loops and functions: casts where they are fewest, with data and without."""

from __future__ import annotations

import numpy as np
import pytest
from corpus_kit import Case, X, draw

F = np.float32
YES = {"c": np.array(True)}
NO = {"c": np.array(False)}
IF = "float[4,8] x, bool c) => (float[4,8] y"
THREE = {"n": np.array(3), "t": np.array(True), "zero": np.zeros((4, 8), F)}
ROWS = "float[3,8] x) => (float[3,8] y"

BODIES = {
    "a branch": Case(
        "h = MatMul(x, w) z = If(c) <then_branch = p () => (float[4,8] q) { q = Relu(h) }, "
        "else_branch = r () => (float[4,8] s) { s = MatMul(h, w) }> y = MatMul(z, v)",
        2,
        "",
        IF,
        YES,
    ),
    "a branch, with a wide node": Case(
        # It is the same value before and behind the Exp: up and down within the branch.
        "h = MatMul(x, w) z = If(c) <then_branch = p () => (float[4,8] q) { q = Exp(h) }, "
        "else_branch = r () => (float[4,8] s) { s = MatMul(h, w) }> y = MatMul(z, v)",
        4,
        "Exp",
        IF,
        NO,
    ),
    "branches of what is around": Case(
        "z = If(c) <then_branch = p () => (float[4,8] q) { q = MatMul(x, w) }, "
        "else_branch = r () => (float[4,8] s) { s = MatMul(x, v) }> y = Relu(z)",
        2,
        "",
        IF,
        YES,
    ),
    "a branch in a branch": Case(
        "h = MatMul(x, w) z = If(c) <then_branch = p () => (float[4,8] q) { q = If(c) "
        "<then_branch = p2 () => (float[4,8] q2) { q2 = Relu(h) }, "
        "else_branch = r2 () => (float[4,8] s2) { s2 = Tanh(h) }> }, "
        "else_branch = r () => (float[4,8] s) { s = Neg(h) }> y = MatMul(z, v)",
        2,
        "",
        IF,
        YES,
    ),
    "a loop": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) m = MatMul(a, w) d = Relu(m) }> "
        "y = MatMul(l, v)",
        2,
        constants=THREE,
    ),
    "a loop that starts at a constant": Case(
        "h = MatMul(x, w) l = Loop(n, t, zero) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) d = Add(a, h) }> y = MatMul(l, v)",
        2,
        constants=THREE,
    ),
    "a loop with a wide node": Case(
        # Carried wide: down before its matmul, up behind; and the two ends.
        "l = Loop(n, t, x) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) m = MatMul(a, w) e = Exp(m) d = Log(e) }> "
        "y = MatMul(l, v)",
        4,
        "Exp Log",
        constants=THREE,
        text="fp16",
    ),
    "a loop that collects": Case(
        "h = MatMul(x, w) l, o = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d, float[4,8] u) { g2 = Identity(g) d = MatMul(a, w) u = Relu(d) }> "
        "y = MatMul(o, v)",
        2,
        "",
        "float[4,8] x) => (float[3,4,8] y",
        constants=THREE,
        evaluator=False,  # it joins the rounds, where it should stack them
    ),
    "a truncation in a loop": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) m = MatMul(a, w) j = Cast<to = 6>(m) "
        "f = Cast<to = 1>(j) d = Add(f, a) }> y = MatMul(l, v)",
        2,
        constants=THREE,
    ),
    "weights that are stored narrow, within": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) f = Cast<to = 1>(wh) d = MatMul(a, f) }> "
        "y = MatMul(l, v)",
        1,
        constants={**THREE, "wh": draw(8, 8).astype(np.float16)},
    ),
    "a constant that branches read": Case(
        "k = Constant<value_float = 2.0>() h = MatMul(x, w) "
        "z = If(c) <then_branch = p () => (float[4,8] q) { q = Mul(h, k) }, "
        "else_branch = r () => (float[4,8] s) { e = Exp(h) f = Pow(e, k) s = Mul(f, k) }> "
        "y = MatMul(z, v)",
        4,
        "Exp Pow",
        IF,
        YES,
    ),
    "a loop in a loop": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) "
        "d = Loop(n, t, a) <body = k2 (int64 i2, bool g3, float[4,8] a2) => "
        "(bool g4, float[4,8] d2) { g4 = Identity(g3) d2 = MatMul(a2, w) }> }> y = MatMul(l, v)",
        2,
        constants=THREE,
    ),
    "a scan": Case(
        "h = MatMul(x, w) s, o = Scan<num_scan_inputs = 1, body = k (float[8] a, float[8] r) => "
        "(float[8] a2, float[8] u) { a2 = Add(a, r) u = Relu(a2) }>(z, h) y = MatMul(o, v)",
        2,
        "",
        ROWS,
        {"x": X[:3]},
        {"z": np.zeros(8, F)},
    ),
    "a scan with matmuls": Case(
        "s, o = Scan<num_scan_inputs = 1, body = k (float[8] a, float[8] r) => "
        "(float[8] a2, float[8] u) { m = MatMul(r, w) a2 = Add(a, m) u = Relu(a2) }>(z, x) "
        "y = MatMul(o, v)",
        2,
        "",
        ROWS,
        {"x": X[:3]},
        {"z": np.zeros(8, F)},
    ),
    "a function": Case(
        'h = MatMul(x, w) f = d.F(h) y = MatMul(f, v) | <domain: "d", opset_import: ["": 20]> '
        "F (a) => (q) { p = Relu(a) q = Neg(p) }",
        2,
    ),
    "a function that is called twice": Case(
        'h = d.F(x) r = Relu(h) y = d.F(r) | <domain: "d", opset_import: ["": 20]> '
        "F (a) => (q) { p = Relu(a) q = MatMul(p, p) }",
        2,
        "",
        "float[8,8] x) => (float[8,8] y",
        {"x": draw(8, 8)},
    ),
    "a function in a loop": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) d = d.F(a) }> y = MatMul(l, v) "
        '| <domain: "d", opset_import: ["": 20]> F (a) => (q) { q = Relu(a) }',
        2,
        constants=THREE,
    ),
}
CASES = BODIES | {
    f"{name}, with data": Case(**{**vars(case), "data": True}) for name, case in BODIES.items()
}
LARGE = {
    "a loop that leaves the range": Case(
        "h = MatMul(x, w) l = Loop(n, t, h) <body = k (int64 i, bool g, float[4,8] a) => "
        "(bool g2, float[4,8] d) { g2 = Identity(g) d = Mul(a, a) }> s = Clip(l, lo, hi) "
        "y = MatMul(s, v)",
        4,
        "Mul Clip",
        feeds={"x": np.full((4, 8), 6, F)},
        constants={**THREE, "w": np.eye(8, dtype=F), "lo": F(-1), "hi": F(1)},
        data=True,
    ),
    "a branch that leaves the range": Case(
        "h = MatMul(x, w) z = If(c) <then_branch = p () => (float[4,8] q) "
        "{ q1 = Mul(h, h) q2 = Mul(q1, q1) q3 = Mul(q2, q2) q = Div(q3, q2) }, "
        "else_branch = r () => (float[4,8] s) { s = MatMul(h, w) }> y = MatMul(z, v)",
        4,
        "Mul Div",
        IF,
        {"x": np.full((4, 8), 6, F), **YES},
        {"w": np.eye(8, dtype=F)},
        data=True,
    ),
    "a scan that leaves the range within": Case(
        "h = MatMul(x, w) s, o = Scan<num_scan_inputs = 1, body = k (float[8] a, float[8] r) => "
        "(float[8] a2, float[8] u) { a2 = Add(a, r) b2 = Mul(r, big) u = Div(b2, big) }>(z, h) "
        "y = MatMul(o, v)",
        4,
        "Add Mul Div",
        ROWS,
        {"x": X[:3] * 10},
        {"z": np.zeros(8, F), "w": np.eye(8, dtype=F), "big": F(60000)},
        data=True,
    ),
    "a function that leaves the range": Case(
        'h = MatMul(x, w) f = d.F(h) y = MatMul(f, v) | <domain: "d", opset_import: ["": 20]> '
        "F (a) => (q) { p = Mul(a, a) r = Mul(p, p) s = Mul(r, r) "
        "k = Constant<value_float = 1e-4>() q = Mul(s, k) }",
        4,
        "Mul",
        feeds={"x": np.full((4, 8), 6, F)},
        constants={"w": np.eye(8, dtype=F), "v": np.eye(8, dtype=F)},
        data=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_subgraphs(name):
    CASES[name].check()


@pytest.mark.parametrize("name", LARGE)
def test_ranges_within_subgraphs(name):
    LARGE[name].check()
