"""Models that a naive folder gets wrong: graphs, functions, equal nodes and old operator sets."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from traps import ZERO, F, M, S, Trap, constant, i64, unary

YES, NO = {"c": np.array(True)}, {"c": np.array(False)}
BODY = "g = Identity(f)"

CONTROL = {
    "if on one element": Trap(
        """g (float[2] x) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        {"c": np.array([False])},
        gone=("If",),
    ),
    "if of shapes that differ": Trap(
        """g (float[2] x, bool c) => (int64[?] y, float[?] z) { z = If(c)
        <then_branch = a () => (float[?] p) { p = Concat <axis = 0> (x, x) },
         else_branch = b () => (float[?] q) { q = Neg(x) }> y = Shape(z) }"""
    ),
    "if with captures that are hidden elsewhere": Trap(
        """g (float[2] x, bool d) => (float[?] y) { v = Exp(x) y = If(c)
        <then_branch = a () => (float[?] p) { w = Neg(v) p = If(d)
            <then_branch = e () => (float[?] r) { r = Add(w, v) },
             else_branch = h () => (float[?] s) { s = Mul(w, v) }> },
         else_branch = b () => (float[?] q) { q = Abs(v) }> }""",
        YES,
    ),
    "if giving an outer value through identity": Trap(
        """g (float[2] x) => (float[?] y, float[?] z) { v = Neg(x) y, z = If(c)
        <then_branch = a () => (float[?] p, float[?] r) { p = Identity(v) r = Identity(v) },
         else_branch = b () => (float[?] q, float[?] s) { q = Abs(x) s = Abs(x) }> }""",
        YES,
    ),
    "if giving an initializer": Trap(
        """g (float[2] x) => (float[?] y, float[?] z) { z = Neg(x) y = If(c)
        <then_branch = a () => (float[?] p) <float[2] p = {1, 2}> { },
         else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        YES,
    ),
    "two ifs that give the same names": Trap(
        """g (float[2] x) => (float[?] y) { t = If(c) <then_branch = a () => (float[?] p)
        { v = Neg(x) p = Exp(v) }, else_branch = b () => (float[?] q) { q = Abs(x) }>
        u = If(c) <then_branch = a () => (float[?] p) { v = Abs(x) p = Sqrt(v) },
        else_branch = b () => (float[?] q) { q = Abs(x) }> y = Sub(t, u) }""",
        YES,
        tolerance=1e-6,
    ),
    "if whose branches are the same": Trap(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Neg(x) }> }"""
    ),
    "constants in a branch that is not taken": Trap(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { d = Gather(k, l) q = Add(x, d) }> }""",
        {"k": M[0], "l": i64(9)},
        {"c": np.array(True)},
    ),
    "loop of no trips": Trap(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x) <body = l (int64 i, bool f, float[2] v)
        => (bool g, float[2] w) {{ {BODY} w = Neg(v) }}> }}""",
        {"n": np.array(0)},
    ),
    "loop of one trip": Trap(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x) <body = l (int64 i, bool f, float[2] v)
        => (bool g, float[2] w) {{ {BODY} w = Neg(v) }}> }}""",
        {"n": np.array(1)},
    ),
    "loop whose condition is false": Trap(
        """g (float[2] x) => (float[?] y) { y = Loop(n, c, x) <body = l (int64 i, bool f, float[2] v)
        => (bool g, float[2] w) { g = Identity(f) w = Neg(v) }> }""",
        {"n": np.array(3), **NO},
    ),
    "constant loop with scan outputs": Trap(
        """g (float[1] x) => (float[?] y, float[?, ?] z) { y, z = Loop(n, , k) <body =
        l (int64 i, bool f, float[2] v) => (bool g, float[2] w, float[2] s)
        { g = Identity(f) w = Add(v, v) s = Identity(v) }> }""",
        {"n": np.array(3), "k": np.array([1, 2], F)},
    ),
    "constant loop with scan outputs of no trips": Trap(
        """g (float[1] x) => (float[?] y, float[?, ?] z) { y, z = Loop(n, , k) <body =
        l (int64 i, bool f, float[2] v) => (bool g, float[2] w, float[2] s)
        { g = Identity(f) w = Add(v, v) s = Identity(v) }> }""",
        {"n": np.array(0), "k": np.array([1, 2], F)},
    ),
    "constant loop that stops itself": Trap(
        """g (float[1] x) => (int64[?] y) { t = Loop(n, c, k) <body =
        l (int64 i, bool f, int64[1] v) => (bool g, int64[1] w)
        { w = Add(v, v) m = ReduceMax <keepdims = 0> (w) g = Less(m, h) }> y = Identity(t) }""",
        {"n": np.array(100), "k": i64(1), "h": np.int64(20), **YES},
    ),
    "loop with a side output that is not read": Trap(
        f"""g (float[2] x) => (float[?] y) {{ y, u = Loop(n, , x) <body = l (int64 i, bool f,
        float[2] v) => (bool g, float[2] w, float[2] s) {{ {BODY} w = Neg(v) s = Exp(v) }}> }}""",
        {"n": np.array(3)},
    ),
    "loop that carries a constant": Trap(
        f"""g (float[2] x) => (float[?] y, float[?] z) {{ y, z = Loop(n, , x, k) <body =
        l (int64 i, bool f, float[2] v, float[2] k2) => (bool g, float[2] w, float[2] k3)
        {{ {BODY} w = Add(v, k2) k3 = Add(k2, k2) }}> }}""",
        {"n": np.array(3), "k": np.array([1, 2], F)},
    ),
    "loop whose carried shape changes": Trap(
        f"""g (float[1] x) => (float[?] y, int64[?] z) {{ y = Loop(n, , x) <body =
        l (int64 i, bool f, float[?] v) => (bool g, float[?] w)
        {{ {BODY} w = Concat <axis = 0> (v, v) }}> z = Shape(y) }}""",
        {"n": np.array(3)},
    ),
    "loop whose sequence number is read": Trap(
        f"""g (float[2] x) => (float[?] y) {{ y = Loop(n, , x) <body = l (int64 i, bool f, float[2] v)
        => (bool g, float[2] w) {{ {BODY} j = Cast <to = 1> (i) w = Add(v, j) }}> }}""",
        {"n": np.array(4)},
    ),
    "scan backwards": Trap(
        """g (float[1] x) => (float y, float[?] z) { y, z = Scan <num_scan_inputs = 1,
        scan_input_directions = [1], body = l (float s, float e) => (float t, float o)
        { t = Add(s, e) o = Identity(t) }> (k, m) }""",
        {"k": F(1), "m": M[0]},
    ),
    "random": Trap(
        """g (float[1] x) => (int64[?] y) { a = RandomNormal <shape = [4]> ()
        b = RandomNormal <shape = [4]> () d = Sub(a, b) e = Equal(d, k) f = Cast <to = 7> (e)
        y = ReduceSum <keepdims = 1> (f) }""",
        {"k": F(0)},
        left=("RandomNormal",),
    ),
    "random with a seed": Trap(
        """g (float[1] x) => (int64[?] y) { a = RandomUniform <shape = [4], seed = 1.0> ()
        y = Shape(a) }"""
    ),
    "random of a shape": Trap(
        """g (float[2] x) => (int64[?] y) { a = RandomUniformLike(x) y = Shape(a) }"""
    ),
    "multinomial of a constant": Trap(
        """g (float[1] x) => (int64[?] y) { a = Multinomial <sample_size = 3> (k) y = Shape(a) }""",
        {"k": M},
    ),
    "dropout in training by ratio 0": Trap(
        "g (float[4] x) => (float[?] y) { y = Dropout(x, r, t) }",
        {"r": F(0), "t": np.array(True)},
    ),
    "dropout with its mask": Trap(
        "g (float[4] x) => (float[?] y, bool[?] m) { y, m = Dropout(x, r) }", {"r": F(0.5)}
    ),
    "dropout of a constant in training": Trap(
        "g (float[1] x) => (int64[?] y) { a = Dropout(k, r, t) y = Shape(a) }",
        {"k": M, "r": F(0.5), "t": np.array(True)},
    ),
    "normalization in training": Trap(
        """g (float[2, 3, 2] x) => (float[?, ?, ?] y, float[?] u, float[?] w) { y, u, w =
        BatchNormalization <training_mode = 1> (x, s, b, m, v) }""",
        {"s": M[0], "b": M[0], "m": M[0], "v": M[0]},
        tolerance=1e-5,
    ),
    "identity from input to output": Trap("g (float[2] x) => (float[2] y) { y = Identity(x) }"),
    "identities from one to several outputs": Trap(
        "g (float[2] x) => (float[2] y, float[2] z) { v = Neg(x) y = Identity(v) z = Identity(v) }"
    ),
    "an output that is read": Trap(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) z = Neg(y) }"
    ),
    "chain of identities": Trap(
        "g (float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    ),
    "initializer as output": Trap(
        "g (float[2] x) => (float[2] z, float[2, 3] k) { z = Neg(x) }", {"k": M}
    ),
    "initializer as output, also read": Trap(
        "g (float[2] x) => (float[?, ?] z, float[2, 3] k) { z = Neg(k) }", {"k": M}
    ),
    "equal initializers as outputs": Trap(
        "g (float[2] x) => (float[2] z, float[2, 3] k, float[2, 3] l) { z = Neg(x) }",
        {"k": M, "l": M},
    ),
    "equal nodes as outputs": Trap(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Neg(x) }"
    ),
    "an output that only a branch reads": Trap(
        """g (float[2] x, bool c) => (float[?] y) { v = Exp(x) y = If(c)
        <then_branch = a () => (float[?] p) { p = Neg(v) },
         else_branch = b () => (float[?] q) { q = Abs(x) }> }"""
    ),
    "input that is not read": Trap("g (float[2] x, float[3] v) => (float[2] y) { y = Neg(x) }"),
    "sequences": Trap(
        """g (float[4] x) => (float[?] y) { q = SplitToSequence(x, k) a = SequenceAt(q, m)
        y = Neg(a) }""",
        {"k": i64(1, 3), "m": np.int64(-1)},
    ),
    "sequence of constants": Trap(
        """g (float[4] x) => (int64 y, float[?] z) { q = SequenceConstruct(k, l)
        y = SequenceLength(q) z = ConcatFromSequence <axis = 0> (q) }""",
        {"k": M[0], "l": S},
    ),
    "optional": Trap(
        "g (float[1] x) => (bool y) { o = Optional(x) y = OptionalHasElement(o) }", opset=18
    ),
    "names that look like numbers": Trap(
        "g (float[2] x) => (float[2] y) { a = Add(x, k) b = Add(a, l) y = Sub(b, k) }",
        {"k": M[0, :2], "l": np.array([3, 4], F)},
    ),
}

FUNCTIONS = {
    "attribute by reference": Trap(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f <a = 0.5> (x)
        z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        feeds={"x": np.array([-1, 2, -3, 4], F)},
    ),
    "default attribute": Trap(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f(x) z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a : float = 0.125> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        feeds={"x": np.array([-1, 2, -3, 4], F)},
    ),
    "default attribute of a call on constants": Trap(
        """g (float[1] x) => (float[?] y, float[?] z) { y = local.f(k) z = local.f <a = 0.25> (k) }
        <opset_import: ["" : 17], domain: "local"> f <a : float = 0.125> (v) => (w)
        { w = LeakyRelu <alpha : float = @a> (v) }""",
        {"k": np.array([-1, 2, -3, 4], F)},
        more=', "local" : 1',
        ir=9,
    ),
    "constant by reference": Trap(
        """g (float[4] x) => (float[?] y, float[?] z) { y = local.f <a = 0.5> (x)
        z = local.f <a = 0.25> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { c = Constant <value_float : float = @a> () d = Neg(c) w = Mul(v, d) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "axis by reference": Trap(
        """g (float[2, 2] x) => (float[?, ?] y, float[?, ?] z) { y = local.f <a = 0> (x)
        z = local.f <a = 1> (x) }
        <opset_import: ["" : 17], domain: "local"> f <a> (v) => (w)
        { w = Softmax <axis : int = @a> (v) }""",
        more=', "local" : 1',
        ir=9,
        tolerance=1e-6,
    ),
    "nested functions": Trap(
        """g (float[3] x) => (float[?] y) { y = local.f <a = 2.0> (x) }
        <opset_import: ["" : 17, "local" : 1], domain: "local"> f <a> (v) => (w)
        { t = local.h <b : float = @a> (v) w = local.h <b = 3.0> (t) }
        <opset_import: ["" : 17], domain: "local"> h <b> (v) => (w)
        { c = Constant <value_float : float = @b> () w = Mul(v, c) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a parameter that is not given": Trap(
        """g (float[3] x) => (float[?] y) { y = local.f(x) }
        <opset_import: ["" : 17], domain: "local"> f (v, low) => (w) { w = Clip(v, low) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a parameter that is not read": Trap(
        """g (float[3] x) => (float[?] y) { k = Neg(x) y = local.f(x, k) }
        <opset_import: ["" : 17], domain: "local"> f (v, u) => (w) { w = Neg(v) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a function that gives its parameter": Trap(
        """g (float[3] x) => (float[?] y) { a, b = local.f(x) y = Add(a, b) }
        <opset_import: ["" : 17], domain: "local"> f (v) => (w, u) { w = Identity(v) u = Neg(v) }""",
        more=', "local" : 1',
        ir=9,
    ),
    "a random function": Trap(
        """g (float[3] x) => (bool y) { a = local.f(x) b = local.f(x) d = Sub(a, b) e = Abs(d)
        m = ReduceMax <keepdims = 0> (e) y = Greater(m, k) }
        <opset_import: ["" : 17], domain: "local"> f (v) => (w) { w = RandomNormalLike(v) }""",
        {"k": F(0)},
        more=', "local" : 1',
        ir=9,
    ),
    "names of the model in a function": Trap(
        """g (float[3] x) => (float[?] y) { a = Neg(x) b = local.f(a) y = Add(a, b) }
        <opset_import: ["" : 17], domain: "local"> f (x) => (y)
        { k = Constant <value_float = 3.0> () a = Mul(x, k) b = Neg(k) y = Add(a, b) }""",
        more=', "local" : 1',
        ir=9,
    ),
}

EQUAL = {
    "attributes that differ": unary("a = Elu <alpha = 0.5> (x) b = Elu <alpha = 0.25> (x) y = Sub(a, b)"),
    "attributes of two zeros": unary(
        "a = LeakyRelu <alpha = 0.0> (x) b = LeakyRelu <alpha = -0.0> (x) c = Reciprocal(a)"
        " d = Reciprocal(b) y = Sub(c, d)"
    ),
    "attribute that is the default": Trap(
        """g (float[2, 3] x) => (float[?, ?] y) { a = Softmax(x) b = Softmax <axis = -1> (x)
        d = Softmax <axis = 0> (x) e = Add(a, b) y = Sub(e, d) }""",
        tolerance=1e-6,
    ),
    "operands in another order": unary(
        "a = Sub(x, k) b = Sub(k, x) c = Add(x, k) d = Add(k, x) e = Mul(a, b) h = Mul(c, d) y = Div(e, h)",
        constants={"k": F(3)},
    ),
    "initializers of two zeros": unary(
        "a = Add(x, k) b = Add(x, l) c = Reciprocal(a) d = Reciprocal(b) y = Max(c, d)",
        constants={"k": np.array([0.0], F), "l": np.array([-0.0], F)},
        feeds={"x": np.array([-0.0], F)},
    ),
    "initializers of the same bytes": Trap(
        """g (float[2] x) => (float[?] y) { a = Cast <to = 1> (k) b = Add(x, l) y = Add(a, b) }""",
        {"k": np.array([1, 2], np.int32), "l": np.array([1, 2], np.int32).view(F)},
    ),
    "initializers of other shapes": Trap(
        "g (float[2] x) => (float[?, ?] y) { a = Add(x, k) y = Add(a, l) }",
        {"k": np.array([1, 2], F), "l": np.array([[1], [2]], F)},
    ),
    "initializers that are inputs": Trap(
        "g (float[2] x, float[2] k) => (float[?] y) { a = Add(x, k) y = Mul(a, l) }",
        {"k": np.array([1, 2], F), "l": np.array([1, 2], F)},
        {"k": np.array([5, 6], F)},
    ),
    "an input with a default, IR version 3": Trap(
        "g (float[2] x, float[2] k) => (float[?] y) { a = Neg(k) y = Mul(a, x) }",
        {"k": np.array([1, 2], F)},
        opset=8,
        ir=3,
    ),
    "a condition with a default": Trap(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        YES,
        {"c": np.array(False)},
        left=("If",),
    ),
    "a shape with a default": Trap(
        "g (float[6] x, int64[2] k) => (float[?, ?] y) { y = Reshape(x, k) }",
        {"k": i64(2, 3)},
        {"k": i64(3, 2)},
    ),
    "outputs that are left out": Trap(
        "g (float[4] x) => (float[?] y, int64[?] z) { a, y2 = TopK(x, k) y, z = TopK(x, k) }",
        {"k": i64(2)},
    ),
    "inputs that are left out": unary(
        "a = Clip(x, k) b = Clip(x, , k) y = Sub(a, b)", constants={"k": F(1)}
    ),
    "bernoulli twice": Trap(
        """g (float[64] x) => (int64[?] y) { a = Bernoulli(k) b = Bernoulli(k) d = Shape(a)
        e = Shape(b) y = Sub(d, e) }""",
        {"k": np.full(64, 0.5, F)},
    ),
    "quantization of a constant": Trap(
        """g (float[2, 2] x) => (float[?, ?] y) { q = QuantizeLinear(w, s, z)
        d = DequantizeLinear(q, s, z) y = MatMul(x, d) }""",
        {"w": np.array([[0.3, 300], [-0.5, -1]], F), "s": F(0.25), "z": np.int8(3)},
        tolerance=1e-6,
    ),
    "quantization and back": Trap(
        """g (float[8] x) => (float[?] y) { q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z) }""",
        {"s": F(0.5), "z": np.uint8(128)},
        {"x": S[[0, 1, 3, 4, 5, 6, 7, 0]]},
    ),
    "dequantization of channels": Trap(
        """g (float[1] x) => (float[?, ?] y) { d = DequantizeLinear <axis = 0> (w, s, z)
        y = Mul(d, x) }""",
        {"w": np.int8([[1, 2], [3, 4]]), "s": np.array([0.5, 2], F), "z": np.int8([0, 1])},
    ),
    "dynamic quantization of a constant": Trap(
        """g (float[1] x) => (uint8[?, ?] y, float z, uint8 u) { y, z, u =
        DynamicQuantizeLinear(k) }""",
        {"k": M},
        tolerance=1e-6,
    ),
    "integer matmul": constant(
        "y = MatMulInteger(k, l, m)",
        "int32",
        rank=2,
        constants={"k": np.uint8([[200, 3]]), "l": np.int8([[1], [-2]]), "m": np.uint8(128)},
    ),
    "einsum": constant(
        'y = Einsum <equation = "ij,kj->ik"> (k, l)', rank=2, constants={"k": M, "l": M}
    ),
}

OLD = {
    "softmax 12": constant("y = Softmax(k)", rank=3, constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)}, opset=12, tolerance=1e-6),
    "softmax 13": constant("y = Softmax(k)", rank=3, constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)}, opset=13, tolerance=1e-6),
    "log softmax 11": constant("y = LogSoftmax <axis = 1> (k)", rank=3, constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)}, opset=11, tolerance=1e-5),
    "hardmax 11": constant("y = Hardmax(k)", rank=3, constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)}, opset=11),
    "squeeze 11": constant("y = Squeeze <axes = [0]> (k)", constants={"k": M[:1]}, opset=11),
    "unsqueeze 11": constant("y = Unsqueeze <axes = [0, 2]> (k)", rank=3, constants={"k": S}, opset=11),
    "clip 6": constant("y = Clip <min = -1.0, max = 1.0> (k)", constants={"k": S}, opset=10),
    "clip 6 without limits": constant("y = Clip(k)", constants={"k": S}, opset=10),
    "dropout 10": Trap("g (float[4] x) => (float[?] y) { y = Dropout <ratio = 0.5> (x) }", opset=10),
    "slice 9": constant("y = Slice <starts = [-3], ends = [100], axes = [0]> (k)", constants={"k": S}, opset=9),
    "pad 10": constant("y = Pad <pads = [1, -1], value = 3.0> (k)", constants={"k": S}, opset=10),
    "reduce sum 12": constant("y = ReduceSum <axes = [1], keepdims = 0> (k)", constants={"k": M}, opset=12),
    "reduce sum 13 of no axes": constant("y = ReduceSum <noop_with_empty_axes = 1> (k)", rank=2, constants={"k": M}, opset=13),
    "reduce max 18 of no axes": constant("y = ReduceMax <noop_with_empty_axes = 1> (k)", rank=2, constants={"k": M}, opset=18),
    "upsample 9": constant('y = Upsample <mode = "nearest"> (k, l)', rank=2, constants={"k": M, "l": np.array([1, 2], F)}, opset=9),
    "top k 10": Trap("g (float[1] x) => (float[?] y, int64[?] z) { y, z = TopK(k, l) }", {"k": M[0], "l": i64(2)}, opset=10),
    "batch normalization 9": Trap(
        "g (float[2, 3, 2] x) => (float[?, ?, ?] y) { y = BatchNormalization(x, s, b, m, v) }",
        {"s": M[0], "b": M[0], "m": M[0], "v": M[0]}, opset=9, tolerance=1e-5,
    ),
    "scatter 10": constant("y = Scatter(k, l, m)", constants={"k": S, "l": i64(1), "m": np.array([9], F)}, opset=10),
    "reshape 13 with 0": Trap("g (float[0, 3] x) => (float[?, ?] y) { y = Reshape(x, k) }", {"k": i64(0, 3)}, opset=13),
    "gelu of constants": constant("y = Gelu(k)", constants={"k": M[0]}, opset=20, tolerance=1e-5),
    "split 12": Trap("g (float[4] x) => (float[?] y, float[?] z) { y, z = Split <split = [1, 3]> (x) }", opset=12),
    "cast 8": constant("y = Cast <to = 6> (k)", "int32", constants={"k": np.array([1.9, -1.9], F)}, opset=8),
    "average pool with padding": constant(
        "y = AveragePool <kernel_shape = [2], pads = [1, 1], count_include_pad = 1> (k)", rank=3,
        constants={"k": M.reshape(1, 2, 3)}, tolerance=1e-6,
    ),
    "max pool of NaN": constant("y = MaxPool <kernel_shape = [2]> (k)", rank=3, constants={"k": M.reshape(1, 2, 3)}),
    "constants of several kinds": Trap(
        """g (float[1] x) => (int64[?] a, float b, float[?] d, string e, string[?] f, int64 h) {
        a = Constant <value_ints = [1, 2]> () b = Constant <value_float = -0.0> ()
        d = Constant <value_floats = [1.5]> () e = Constant <value_string = "ä"> ()
        f = Constant <value_strings = ["a", ""]> () h = Constant <value_int = -3> () }""",
    ),
    "text": constant(
        "y = Concat <axis = 0> (k, l)",
        "string",
        constants={
            "k": helper.make_tensor("k", TensorProto.STRING, [2], ["ä".encode(), b""]),
            "l": helper.make_tensor("l", TensorProto.STRING, [1], [b"x"]),
        },
    ),
    "equal texts": Trap(
        "g (string[1] x) => (bool[?] y) { y = Equal(x, k) }",
        {"k": helper.make_tensor("k", TensorProto.STRING, [1], ["ä".encode()])},
        {"x": np.array(["ä"], object)},
        opset=19,
        ir=9,
    ),
}

RESIZES = {}
_IMAGE = np.array([[[[1, 2, 3.5], [4, -5, 6]]]], F)
for _mode in ("nearest", "linear", "cubic"):
    for _coordinates in (
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
    ):
        for _scales in ((1, 1, 2, 2), (1, 1, 0.6, 0.7), (1, 1, 1.5, 1)):
            RESIZES[f"{_mode}, {_coordinates}, {_scales}"] = constant(
                f'y = Resize <mode = "{_mode}", coordinate_transformation_mode = "{_coordinates}">'
                " (k, , l)",
                rank=4,
                constants={"k": _IMAGE, "l": np.array(_scales, F)},
                opset=19,
                ir=9,
                tolerance=1e-5,
            )
for _rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for _sizes in ((1, 1, 5, 7), (1, 1, 1, 2), (1, 1, 3, 1)):
        RESIZES[f"{_rounding}, {_sizes}"] = constant(
            f'y = Resize <mode = "nearest", nearest_mode = "{_rounding}"> (k, , , l)',
            rank=4,
            constants={"k": _IMAGE, "l": i64(*_sizes)},
        )
for _policy in ("not_larger", "not_smaller", "stretch"):
    RESIZES[_policy] = constant(
        f'y = Resize <mode = "linear", keep_aspect_ratio_policy = "{_policy}", axes = [2, 3]> (k, , , l)',
        rank=4,
        constants={"k": _IMAGE, "l": i64(5, 5)},
        opset=18,
        tolerance=1e-5,
    )
RESIZES["antialias"] = constant(
    'y = Resize <mode = "linear", antialias = 1> (k, , l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 0.5, 0.6], F)},
    opset=18,
    tolerance=1e-5,
)
RESIZES["crop"] = constant(
    'y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize",'
    " extrapolation_value = 9.0> (k, m, , l)",
    rank=4,
    constants={
        "k": _IMAGE,
        "m": np.array([0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2], F),
        "l": i64(1, 1, 3, 4),
    },
    tolerance=1e-5,
)
RESIZES["exclude outside"] = constant(
    'y = Resize <mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5> (k, , l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 2, 1.5], F)},
    tolerance=1e-5,
)
RESIZES["opset 10"] = constant(
    'y = Resize <mode = "linear"> (k, l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 2, 2], F)},
    opset=10,
    tolerance=1e-5,
)
