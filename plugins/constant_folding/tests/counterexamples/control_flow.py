"""Counterexamples to naive rewrites: control flow, outputs, functions."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, M, S, i64

YES, NO = {"c": np.array(True)}, {"c": np.array(False)}
BODY = "g = Identity(f)"

CONTROL = {
    "if on one element": Counterexample(
        """g (float[2] x) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        {"c": np.array([False])},
        gone=("If",),
    ),
    "if of shapes that differ": Counterexample(
        """g (float[2] x, bool c) => (int64[?] y, float[?] z) { z = If(c)
        <then_branch = a () => (float[?] p) { p = Concat <axis = 0> (x, x) },
         else_branch = b () => (float[?] q) { q = Neg(x) }> y = Shape(z) }"""
    ),
    "if with captures that are hidden elsewhere": Counterexample(
        """g (float[2] x, bool d) => (float[?] y) { v = Exp(x) y = If(c)
        <then_branch = a () => (float[?] p) { w = Neg(v) p = If(d)
            <then_branch = e () => (float[?] r) { r = Add(w, v) },
             else_branch = h () => (float[?] s) { s = Mul(w, v) }> },
         else_branch = b () => (float[?] q) { q = Abs(v) }> }""",
        YES,
    ),
    "if returning an outer value through identity": Counterexample(
        """g (float[2] x) => (float[?] y, float[?] z) { v = Neg(x) y, z = If(c)
        <then_branch = a () => (float[?] p, float[?] r) { p = Identity(v) r = Identity(v) },
         else_branch = b () => (float[?] q, float[?] s) { q = Abs(x) s = Abs(x) }> }""",
        YES,
    ),
    "if returning an initializer": Counterexample(
        """g (float[2] x) => (float[?] y, float[?] z) { z = Neg(x) y = If(c)
        <then_branch = a () => (float[?] p) <float[2] p = {1, 2}> { },
         else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        YES,
    ),
    "two ifs that define the same names": Counterexample(
        """g (float[2] x) => (float[?] y) { t = If(c) <then_branch = a () => (float[?] p)
        { v = Neg(x) p = Exp(v) }, else_branch = b () => (float[?] q) { q = Abs(x) }>
        u = If(c) <then_branch = a () => (float[?] p) { v = Abs(x) p = Sqrt(v) },
        else_branch = b () => (float[?] q) { q = Abs(x) }> y = Sub(t, u) }""",
        YES,
        tolerance=1e-6,
    ),
    "if whose branches are the same": Counterexample(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Neg(x) }> }"""
    ),
    "constants in a branch that is not taken": Counterexample(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { d = Gather(k, l) q = Add(x, d) }> }""",
        {"k": M[0], "l": i64(9)},
        {"c": np.array(True)},
    ),
    "loop of no trips": Counterexample(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x)
        <body = l (int64 i, bool f, float[2] v) => (bool g, float[2] w)
        {{ {BODY} w = Neg(v) }}> }}""",
        {"n": np.array(0)},
    ),
    "loop of one trip": Counterexample(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x)
        <body = l (int64 i, bool f, float[2] v) => (bool g, float[2] w)
        {{ {BODY} w = Neg(v) }}> }}""",
        {"n": np.array(1)},
    ),
    "loop whose condition is false": Counterexample(
        """g (float[2] x) => (float[?] y) { y = Loop(n, c, x)
        <body = l (int64 i, bool f, float[2] v) => (bool g, float[2] w)
        { g = Identity(f) w = Neg(v) }> }""",
        {"n": np.array(3), **NO},
    ),
    "constant loop with scan outputs": Counterexample(
        """g (float[1] x) => (float[?] y, float[?, ?] z) { y, z = Loop(n, , k) <body =
        l (int64 i, bool f, float[2] v) => (bool g, float[2] w, float[2] s)
        { g = Identity(f) w = Add(v, v) s = Identity(v) }> }""",
        {"n": np.array(3), "k": np.array([1, 2], F)},
    ),
    "constant loop with scan outputs of no trips": Counterexample(
        """g (float[1] x) => (float[?] y, float[?, ?] z) { y, z = Loop(n, , k) <body =
        l (int64 i, bool f, float[2] v) => (bool g, float[2] w, float[2] s)
        { g = Identity(f) w = Add(v, v) s = Identity(v) }> }""",
        {"n": np.array(0), "k": np.array([1, 2], F)},
    ),
    "constant loop that stops itself": Counterexample(
        """g (float[1] x) => (int64[?] y) { t = Loop(n, c, k) <body =
        l (int64 i, bool f, int64[1] v) => (bool g, int64[1] w)
        { w = Add(v, v) m = ReduceMax <keepdims = 0> (w) g = Less(m, h) }> y = Identity(t) }""",
        {"n": np.array(100), "k": i64(1), "h": np.int64(20), **YES},
    ),
    "loop with a side output that is not read": Counterexample(
        f"""g (float[2] x) => (float[?] y) {{ y, u = Loop(n, , x) <body = l (int64 i, bool f,
        float[2] v) => (bool g, float[2] w, float[2] s) {{ {BODY} w = Neg(v) s = Exp(v) }}> }}""",
        {"n": np.array(3)},
    ),
    "loop that carries a constant": Counterexample(
        f"""g (float[2] x) => (float[?] y, float[?] z) {{ y, z = Loop(n, , x, k) <body =
        l (int64 i, bool f, float[2] v, float[2] k2) => (bool g, float[2] w, float[2] k3)
        {{ {BODY} w = Add(v, k2) k3 = Add(k2, k2) }}> }}""",
        {"n": np.array(3), "k": np.array([1, 2], F)},
    ),
    "loop whose carried shape changes": Counterexample(
        f"""g (float[1] x) => (float[?] y, int64[?] z) {{ y = Loop(n, , x) <body =
        l (int64 i, bool f, float[?] v) => (bool g, float[?] w)
        {{ {BODY} w = Concat <axis = 0> (v, v) }}> z = Shape(y) }}""",
        {"n": np.array(3)},
    ),
    "loop whose sequence number is read": Counterexample(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x)
        <body = l (int64 i, bool f, float[2] v) => (bool g, float[2] w)
        {{ {BODY} j = Cast <to = 1> (i) w = Add(v, j) }}> }}""",
        {"n": np.array(4)},
    ),
    "scan backwards": Counterexample(
        """g (float[1] x) => (float y, float[?] z) { y, z = Scan <num_scan_inputs = 1,
        scan_input_directions = [1], body = l (float s, float e) => (float t, float o)
        { t = Add(s, e) o = Identity(t) }> (k, m) }""",
        {"k": F(1), "m": M[0]},
    ),
    "random": Counterexample(
        """g (float[1] x) => (int64[?] y) { a = RandomNormal <shape = [4]> ()
        b = RandomNormal <shape = [4]> () d = Sub(a, b) e = Equal(d, k) f = Cast <to = 7> (e)
        y = ReduceSum <keepdims = 1> (f) }""",
        {"k": F(0)},
        left=("RandomNormal",),
    ),
    "random with a seed": Counterexample(
        """g (float[1] x) => (int64[?] y) { a = RandomUniform <shape = [4], seed = 1.0> ()
        y = Shape(a) }"""
    ),
    "random of a shape": Counterexample(
        """g (float[2] x) => (int64[?] y) { a = RandomUniformLike(x) y = Shape(a) }"""
    ),
    "multinomial of a constant": Counterexample(
        """g (float[1] x) => (int64[?] y) { a = Multinomial <sample_size = 3> (k) y = Shape(a) }""",
        {"k": M},
    ),
    "dropout in training by ratio 0": Counterexample(
        "g (float[4] x) => (float[?] y) { y = Dropout(x, r, t) }",
        {"r": F(0), "t": np.array(True)},
    ),
    "dropout with its mask": Counterexample(
        "g (float[4] x) => (float[?] y, bool[?] m) { y, m = Dropout(x, r) }", {"r": F(0.5)}
    ),
    "dropout of a constant in training": Counterexample(
        "g (float[1] x) => (int64[?] y) { a = Dropout(k, r, t) y = Shape(a) }",
        {"k": M, "r": F(0.5), "t": np.array(True)},
    ),
    "normalization in training": Counterexample(
        """g (float[2, 3, 2] x) => (float[?, ?, ?] y, float[?] u, float[?] w) { y, u, w =
        BatchNormalization <training_mode = 1> (x, s, b, m, v) }""",
        {"s": M[0], "b": M[0], "m": M[0], "v": M[0]},
        tolerance=1e-5,
    ),
    "identity from input to output": Counterexample(
        "g (float[2] x) => (float[2] y) { y = Identity(x) }"
    ),
    "identities from one to several outputs": Counterexample(
        "g (float[2] x) => (float[2] y, float[2] z) { v = Neg(x) y = Identity(v) z = Identity(v) }"
    ),
    "an output that is read": Counterexample(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) z = Neg(y) }"
    ),
    "chain of identities": Counterexample(
        "g (float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    ),
    "initializer as output": Counterexample(
        "g (float[2] x) => (float[2] z, float[2, 3] k) { z = Neg(x) }", {"k": M}
    ),
    "initializer as output, also read": Counterexample(
        "g (float[2] x) => (float[?, ?] z, float[2, 3] k) { z = Neg(k) }", {"k": M}
    ),
    "equal initializers as outputs": Counterexample(
        "g (float[2] x) => (float[2] z, float[2, 3] k, float[2, 3] l) { z = Neg(x) }",
        {"k": M, "l": M},
    ),
    "equal nodes as outputs": Counterexample(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Neg(x) }"
    ),
    "an output that only a branch reads": Counterexample(
        """g (float[2] x, bool c) => (float[?] y) { v = Exp(x) y = If(c)
        <then_branch = a () => (float[?] p) { p = Neg(v) },
         else_branch = b () => (float[?] q) { q = Abs(x) }> }"""
    ),
    "input that is not read": Counterexample(
        "g (float[2] x, float[3] v) => (float[2] y) { y = Neg(x) }"
    ),
    "sequences": Counterexample(
        """g (float[4] x) => (float[?] y) { q = SplitToSequence(x, k) a = SequenceAt(q, m)
        y = Neg(a) }""",
        {"k": i64(1, 3), "m": np.int64(-1)},
    ),
    "sequence of constants": Counterexample(
        """g (float[4] x) => (int64 y, float[?] z) { q = SequenceConstruct(k, l)
        y = SequenceLength(q) z = ConcatFromSequence <axis = 0> (q) }""",
        {"k": M[0], "l": S},
    ),
    "optional": Counterexample(
        "g (float[1] x) => (bool y) { o = Optional(x) y = OptionalHasElement(o) }", opset=18
    ),
    "names that look like numbers": Counterexample(
        "g (float[2] x) => (float[2] y) { a = Add(x, k) b = Add(a, l) y = Sub(b, k) }",
        {"k": M[0, :2], "l": np.array([3, 4], F)},
    ),
}

FUNCTIONS = {
    "attribute by reference": Counterexample(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f <a = 0.5> (x)
        z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        feeds={"x": np.array([-1, 2, -3, 4], F)},
    ),
    "default attribute": Counterexample(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f(x) z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a : float = 0.125> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        feeds={"x": np.array([-1, 2, -3, 4], F)},
    ),
    "default attribute of a call on constants": Counterexample(
        """g (float[1] x) => (float[?] y, float[?] z) { y = local.f(k) z = local.f <a = 0.25> (k) }
        <opset_import: ["" : 17], domain: "local"> f <a : float = 0.125> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        {"k": np.array([-1, 2, -3, 4], F)},
        more=', "local" : 1',
        ir=9,
    ),
    "constant by reference": Counterexample(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f <a = 0.5> (x)
        z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { c = Constant <value_float : float = @a> () d = Neg(c) w = Mul(v, d) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "axis by reference": Counterexample(
        """g (float[2, 2] x) => (float[?, ?] y, float[?, ?] z) { y = local.f <a = 0> (x)
        z = local.f <a = 1> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { w = Softmax <axis : int = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        tolerance=1e-6,
    ),
    "nested functions": Counterexample(
        """g (float[3] x) => (float[?] y) { y = local.f <a = 2.0> (x) }
        <opset_import: ["" : 17, "local" : 1], domain: "local"> f <a> (v) => (w)
        { t = local.h <b : float = @a> (v) w = local.h <b = 3.0> (t) }
        <opset_import: ["" : 17], domain: "local"> h <b> (v) => (w)
        { c = Constant <value_float : float = @b> () w = Mul(v, c) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a parameter that is not given": Counterexample(
        """g (float[3] x) => (float[?] y) { y = local.f(x) }
        <opset_import: ["" : 17], domain: "local"> f (v, low) => (w) { w = Clip(v, low) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a parameter that is not read": Counterexample(
        """g (float[3] x) => (float[?] y) { k = Neg(x) y = local.f(x, k) }
        <opset_import: ["" : 17], domain: "local"> f (v, u) => (w) { w = Neg(v) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a function that returns its parameter": Counterexample(
        """g (float[3] x) => (float[?] y) { a, b = local.f(x) y = Add(a, b) }
        <opset_import: ["" : 17], domain: "local"> f (v) => (w, u)
        { w = Identity(v) u = Neg(v) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a random function": Counterexample(
        """g (float[3] x) => (bool y) { a = local.f(x) b = local.f(x) d = Sub(a, b) e = Abs(d)
        m = ReduceMax <keepdims = 0> (e) y = Greater(m, k) }
        <opset_import: ["" : 17], domain: "local"> f (v) => (w) { w = RandomNormalLike(v) }""",
        {"k": F(0)},
        more=', "local" : 1',
        ir=9,
    ),
    "names of the model in a function": Counterexample(
        """g (float[3] x) => (float[?] y) { a = Neg(x) b = local.f(a) y = Add(a, b) }
        <opset_import: ["" : 17], domain: "local"> f (x) => (y)
        { k = Constant <value_float = 3.0> () a = Mul(x, k) b = Neg(k) y = Add(a, b) }""",
        more=', "local" : 1',
        ir=9,
    ),
}
