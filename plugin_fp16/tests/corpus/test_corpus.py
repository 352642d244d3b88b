"""Models of all kinds: their results are right, and they have the fewest casts.

Each case says how many casts are added: worked out by hand, from which nodes must be narrow, which
must not, and which may be both.
"""

from __future__ import annotations

import numpy as np
import pytest
from corpus_kit import Case, X, draw

F = np.float32
MASK = np.where(np.arange(8) < 5, 0, -3.4028235e38).astype(F)
TINY = F([1e-9, -1e-9] * 4)
LN = {"s": np.ones(8, F)}
EPS = {"two": F(2), "eps": F(1e-12), "last": np.array([-1])}

CHAINS = {
    "one matmul": Case("y = MatMul(x, w)", 2),
    "a chain": Case("h = MatMul(x, w) r = Relu(h) g = Tanh(r) y = MatMul(g, v)", 2),
    "a diamond": Case("h = MatMul(x, w) a = Relu(h) c = Neg(h) y = Add(a, c)", 2),
    "a diamond with a red side": Case(
        "h = MatMul(x, w) a = Relu(h) c = Exp(h) z = Add(a, c) y = MatMul(z, v)", 4, "Exp"
    ),
    "a residual": Case("h = MatMul(x, w) r = Relu(h) y = Add(r, x)", 2),
    "a wide residual": Case(
        # Into each matmul a cast, and out of it one; the additions are wide.
        "h = MatMul(x, w) e = Exp(h) a = Add(e, x) i = MatMul(a, v) f = Exp(i) y = Add(f, a)",
        4,
        "Add Exp",
    ),
    "several readers": Case(
        "h = MatMul(x, w) a = Exp(h) c = Log(a) d = Add(a, c) s = Sin(h) y = Add(d, s)",
        2,
        "Add Exp Log Sin",
    ),
    "three matmuls of one value": Case(
        "a = MatMul(x, w) c = MatMul(x, v) d = Add(a, c) e = MatMul(x, w) y = Add(d, e)", 2
    ),
    "green alone in the middle": Case("e = Exp(x) h = MatMul(e, w) y = Exp(h)", 2, "Exp"),
    "gray between reds": Case(
        "e = Exp(x) r = Relu(e) l = Softplus(r) y = MatMul(l, w)", 2, "Exp Relu Softplus"
    ),
    "nothing to gain": Case("e = Exp(x) y = Relu(e)", 0, "Exp Relu"),
    "an output that is read": Case(
        "y = MatMul(x, w) z = MatMul(y, v)", 3, ends="float[4,8] x) => (float[4,8] y, float[4,8] z"
    ),
    "one value twice an output": Case(
        "h = MatMul(x, w) y = Identity(h) z = Identity(h)",
        2,
        "Identity",
        ends="float[4,8] x) => (float[4,8] y, float[4,8] z",
    ),
    "two inputs, one green": Case(
        "h = MatMul(x, w) y = Mul(h, u)",
        2,
        "Mul",
        ends="float[4,8] x, float[4,8] u) => (float[4,8] y",
        feeds={"u": X + 1},
    ),
    "identities": Case("a = Identity(x) h = MatMul(a, w) c = Identity(h) y = Identity(c)", 2),
    "dropout": Case("h = MatMul(x, w) d = Dropout(h) y = MatMul(d, v)", 4, "Dropout"),
    "a dynamic shape": Case(
        "h = MatMul(x, w) s = Shape(h) r = Reshape(h, s) y = MatMul(r, v)",
        2,
        ends="float[N,8] x) => (float[N,8] y",
    ),
}

CONSTANTS = {
    "a constant node": Case(
        "c = Constant<value = float[1] {2.0}>() h = MatMul(x, w) y = Mul(h, c)", 2
    ),
    "a constant node both ways": Case(
        "c = Constant<value_float = 2.0>() h = MatMul(x, w) a = Mul(h, c) e = Exp(a) "
        "f = Pow(e, c) y = Mul(f, c)",
        2,
        "Exp Mul Pow",
    ),
    "an initializer both ways": Case(
        "h = MatMul(x, w) a = Add(h, b) e = Exp(b) y = Mul(a, e)", 2, "Exp Mul"
    ),
    "tiny before a sign": Case(
        "h = MatMul(x, w) c = Expand(t, n) s = Sign(c) a = Mul(h, s) y = MatMul(a, v)",
        3,
        "Expand Sign",
        constants={"t": TINY, "n": np.array([4, 8])},
    ),
    "a few tiny ones before a sign": Case(
        "h = MatMul(x, w) c = Mul(m, t) s = Sign(c) a = Mul(h, s) y = MatMul(a, v)",
        3,
        "Mul Sign",
        constants={"t": F([1, 1, 1, 1, 1e-9, -1e-9, 1, -1]), "m": np.ones((4, 8), F)},
    ),
    "tiny before a comparison": Case(
        "h = MatMul(x, w) r = Relu(h) a = Add(r, t) k = Greater(a, z) y = Where(k, h, x)",
        2,
        "Relu Add Greater Where",
        constants={"t": F([1e-9] * 8), "z": F(0)},
    ),
    "tiny chosen, and a reciprocal": Case(
        "h = MatMul(x, w) k = Greater(h, z) c = Where(k, t, o) q = Reciprocal(c) g = Sign(c) "
        "f = Mul(q, g) l = Log(f) a = Mul(h, l) y = MatMul(a, v)",
        3,
        "Where Reciprocal Sign Mul Log",
        constants={"t": TINY, "z": F(0), "o": F(1)},
    ),
    "tiny from a ConstantOfShape": Case(
        "h = MatMul(x, w) n = Shape(x) c = ConstantOfShape<value = float[1] {1e-9}>(n) "
        "s = Sign(c) a = Mul(h, s) y = MatMul(a, v)",
        3,
        "ConstantOfShape Sign",
    ),
    "tiny as a truth": Case(
        "h = MatMul(x, w) c = Expand(t, n) k = Cast<to = 9>(c) a = Where(k, h, z) y = MatMul(a, v)",
        2,
        "Expand Cast",
        constants={"t": F([1e-9, 0] * 4), "n": np.array([4, 8]), "z": F(0)},
    ),
    "tiny in a sum alone": Case(
        "h = MatMul(x, w) a = Add(h, t) y = MatMul(a, v)",
        2,
        constants={"t": F([1, 1, 1, 1e-9, 1e-30, 1, 1, 1])},
    ),
    "an epsilon under a root": Case(
        "h = MatMul(x, w) q = Relu(h) a = Add(q, eps) s = Sqrt(a) z = Div(q, s) "
        "c = Clip(z, o, t) y = MatMul(c, v)",
        4,
        "Add Sqrt Div",
        constants={"eps": F(1e-12), "o": F(-2), "t": F(2)},
    ),
    "a number beyond": Case(
        "h = MatMul(x, w) a = Mul(h, c) k = Less(a, c) y = Where(k, h, x)",
        2,
        "Mul Less Where",
        constants={"c": F(1e5)},
    ),
    "a mask": Case(
        "h = MatMul(x, w) a = Add(h, m) p = Softmax(a) y = MatMul(p, v)",
        4,
        "Add Softmax",
        constants={"m": MASK},
    ),
    "a mask that is chosen": Case(
        "h = MatMul(x, w) z = Where(k, h, m) p = Softmax(z) y = MatMul(p, v)",
        4,
        "Where Softmax",
        ends="float[4,8] x, bool[4,8] k) => (float[4,8] y",
        feeds={"k": np.tile(np.arange(8) < 6, (4, 1))},
        constants={"m": F([-3.4028235e38])},
    ),
    "a mask of infinities": Case(
        "h = MatMul(x, w) z = Where(k, h, m) p = Softmax(z) y = MatMul(p, v)",
        2,
        ends="float[4,8] x, bool[4,8] k) => (float[4,8] y",
        feeds={"k": np.tile(np.arange(8) < 6, (4, 1))},
        constants={"m": F([-np.inf])},
    ),
    "an overridable initializer": Case(
        "h = MatMul(x, u) y = Relu(h)",
        3,
        ends="float[4,8] x, float[8,8] u = {" + ",".join(["0.5"] * 64) + "}) => (float[4,8] y",
    ),
}

NORMS = {
    "LayerNormalization": Case(
        "h = MatMul(x, w) n = LayerNormalization(h, s) y = MatMul(n, v)", 2, constants=LN
    ),
    "a normalization by hand": Case(
        # The difference is gray: wide with the rest, so one cast up and one down.
        "h = MatMul(x, w) m = ReduceMean(h, last) d = Sub(h, m) q = Mul(d, d) "
        "t = ReduceMean(q, last) e = Add(t, eps) r = Sqrt(e) n = Div(d, r) y = MatMul(n, v)",
        4,
        "Mul Add Sqrt Div ReduceMean",
        constants=EPS,
    ),
    "softmax, short": Case("h = MatMul(x, w) p = Softmax(h) y = MatMul(p, v)", 2),
    "softmax, of unknown length": Case(
        "h = MatMul(x, x) p = Softmax(h) y = MatMul(p, x)",
        4,
        "Softmax",
        ends="float[N,N] x) => (float[N,N] y",
        feeds={"x": draw(6, 6)},
    ),
    "attention": Case(
        "q = MatMul(x, w) k = MatMul(x, v) t = Transpose<perm = [1, 0]>(k) s = MatMul(q, t) "
        "d = Mul(s, c) p = Softmax(d) y = MatMul(p, k)",
        2,
        constants={"c": F(0.35)},
    ),
    "a batch norm": Case(
        "h = Conv(x, k) n = BatchNormalization(h, o, z, z, o) r = Relu(n) y = Conv(r, k)",
        4,
        "BatchNormalization",
        ends="float[1,4,5,5] x) => (float[1,4,5,5] y",
        feeds={"x": draw(1, 4, 5, 5)},
        constants={"k": draw(4, 4, 1, 1), "o": np.ones(4, F), "z": np.zeros(4, F) + F(0.5)},
    ),
    "a reduction, short": Case(
        "h = MatMul(x, w) m = ReduceSum(h, last) y = Sub(h, m)", 2, constants=EPS
    ),
    "a maximum": Case("h = MatMul(x, w) m = ReduceMax(h, last) y = Sub(h, m)", 2, constants=EPS),
    "an L2 norm": Case(
        "h = MatMul(x, w) m = ReduceL2(h, last) c = Add(m, o) d = Mul(h, c) y = MatMul(d, v)",
        # Up before the norm; its result down.
        4,
        "ReduceL2",
        constants={**EPS, "o": F(1)},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    CHAINS[name].check()


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name):
    CONSTANTS[name].check()


@pytest.mark.parametrize("name", NORMS)
def test_normalizations(name):
    NORMS[name].check()
