"""Models with casts, integers and narrow parts of their own: fewest casts, and theirs are kept."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from corpus_kit import Case, W, X, draw

F = np.float32
IDS = {"i": np.arange(32).reshape(4, 8)}
IN = "int64[4,8] i) => (float[4,8] y"
HALVES = {"wh": W.astype(np.float16), "vb": draw(8, 8, seed=3).astype(ml_dtypes.bfloat16)}

CASTS = {
    "integers without data": Case(
        "f = Cast<to = 1>(i) y = MatMul(f, w)", 0, "Cast MatMul", IN, IDS
    ),
    "integers with data": Case("f = Cast<to = 1>(i) y = MatMul(f, w)", 1, "", IN, IDS, data=True),
    "integers too large on the data": Case(
        "f = Cast<to = 1>(i) y = MatMul(f, w)",
        0,
        "Cast MatMul",
        IN,
        {"i": IDS["i"] * 100},
        data=True,
    ),
    "integers of eight bits": Case(
        "f = Cast<to = 1>(i) y = MatMul(f, w)",
        1,
        "",
        "int8[4,8] i) => (float[4,8] y",
        {"i": IDS["i"].astype(np.int8)},
    ),
    "constant integers": Case(
        "f = Cast<to = 1>(c) g = Add(x, f) y = MatMul(g, w)", 2, constants={"c": np.arange(8)}
    ),
    "a truncation": Case(
        "h = MatMul(x, w) i = Cast<to = 6>(h) f = Cast<to = 1>(i) y = MatMul(f, v)",
        2,
        feeds={"x": np.round(X * 40)},
        constants={"w": np.eye(8, dtype=F) * F(1.5)},
    ),
    "a truncation with data": Case(
        "h = MatMul(x, w) i = Cast<to = 7>(h) f = Cast<to = 1>(i) y = MatMul(f, v)",
        2,
        feeds={"x": np.round(X * 40)},
        constants={"w": np.eye(8, dtype=F) * F(1.5)},
        data=True,
    ),
    "a truncation behind a Relu": Case(
        "h = MatMul(x, w) r = Relu(h) i = Cast<to = 6>(r) f = Cast<to = 1>(i) y = MatMul(f, v)",
        2,
        feeds={"x": np.round(X * 40)},
        constants={"w": np.eye(8, dtype=F) * F(1.5)},
    ),
    "two truncations": Case(
        "h = MatMul(x, w) i = Cast<to = 7>(h) f = Cast<to = 1>(i) j = Cast<to = 6>(f) "
        "g = Cast<to = 1>(j) y = MatMul(g, v)",
        2,
        feeds={"x": np.round(X * 40)},
        constants={"w": np.eye(8, dtype=F) * F(1.5)},
    ),
    "a truncation that is an index too": Case(
        "h = MatMul(x, w) i = Cast<to = 7>(h) f = Cast<to = 1>(i) g = Gather(b, i) m = Mul(f, g) "
        "y = MatMul(m, v)",
        2,
        feeds={"x": np.round(np.abs(X))},
        constants={"w": np.eye(8, dtype=F)},
    ),
    "a truncation with a wide Cast": Case(
        "h = MatMul(x, w) [i] i = Cast<to = 7>(h) f = Cast<to = 1>(i) y = MatMul(f, v)",
        2,
        "Cast MatMul",
        feeds={"x": np.round(X * 40)},
        constants={"w": np.eye(8, dtype=F) * F(1.5)},
        text="fp16{red=[i]}",
    ),
    "a truncation of what was never narrow": Case(
        "i = Cast<to = 6>(x) f = Cast<to = 1>(i) h = MatMul(f, w) y = MatMul(h, v)",
        2,
        "Cast MatMul",
        feeds={"x": np.round(X * 4000) + F(0.9999)},
    ),
    "the same with data in range": Case(
        "i = Cast<to = 6>(x) f = Cast<to = 1>(i) h = MatMul(f, w) y = MatMul(h, v)",
        1,
        "Cast",
        feeds={"x": np.round(X * 400) + F(0.9999)},
        data=True,
    ),
    "an index of a matmul": Case(
        "h = MatMul(x, w) i = Cast<to = 7>(h) y = Gather(b, i)",
        1,
        "Gather",
        "float[4,8] x) => (float[4,8] y",
        {"x": np.round(np.abs(X))},
        {"w": np.eye(8, dtype=F)},
    ),
    "a cast that rounds": Case(
        "a = Cast<to = 10>(x) c = Cast<to = 1>(a) y = MatMul(c, w)", 0, "Cast"
    ),
    "a cast that rounds, between": Case(
        "h = Exp(x) a = Cast<to = 10>(h) c = Cast<to = 1>(a) e = Exp(c) y = MatMul(e, w)",
        2,
        "Exp Cast",
    ),
    "a cast to bfloat16 and back": Case(
        "h = MatMul(x, w) a = Cast<to = 16>(h) c = Cast<to = 1>(a) y = MatMul(c, v)", 2
    ),
    "a cast that rounds a matmul": Case(
        "h = MatMul(x, w) a = Cast<to = 10>(h) c = Cast<to = 1>(a) y = Relu(c)", 1, "Cast Relu"
    ),
    "ends of float16": Case(
        "a = Cast<to = 1>(x) h = MatMul(a, w) y = Cast<to = 10>(h)",
        -1,
        ends="float16[4,8] x) => (float16[4,8] y",
        feeds={"x": X.astype(np.float16)},
    ),
    "ends of double": Case(
        "a = Cast<to = 1>(x) h = MatMul(a, w) y = Cast<to = 11>(h)",
        0,
        ends="double[4,8] x) => (double[4,8] y",
        feeds={"x": X.astype(np.float64)},
    ),
    "a part in float16": Case(
        "h = MatMul(x, w) a = Cast<to = 10>(h) p = MatMul(a, wh) c = Cast<to = 1>(p) y = Exp(c)",
        # What the model casts stays; the Exp and its input are wide.
        1,
        "Cast Exp",
        constants=HALVES,
    ),
    "a cast of nothing": Case("a = Cast<to = 1>(x) h = MatMul(a, w) y = Cast<to = 1>(h)", 0),
    "a truth": Case("h = MatMul(x, w) k = Cast<to = 9>(h) f = Cast<to = 1>(k) y = MatMul(f, v)", 2),
    "a truth of an input": Case(
        "h = MatMul(x, w) k = Cast<to = 9>(x) y = Where(k, h, x)",
        2,
        "Cast",
        feeds={"x": np.where(X > 0, X, F(1e-9))},
    ),
    "stored halves": Case("f = Cast<to = 1>(wh) y = MatMul(x, f)", 1, constants=HALVES),
    "stored halves, both ways": Case(
        "f = Cast<to = 1>(wh) h = MatMul(x, f) e = Exp(f) y = MatMul(h, e)",
        3,
        "Exp",
        constants=HALVES,
    ),
    "stored bfloat16": Case("f = Cast<to = 1>(vb) y = MatMul(x, f)", 1, constants=HALVES),
    "a transposed stored half": Case(
        "f = Cast<to = 1>(wh) t = Transpose<perm = [1, 0]>(f) y = MatMul(x, t)", 1, constants=HALVES
    ),
    "stored halves that stay": Case(
        "f = Cast<to = 1>(wh) y = Exp(f)",
        0,
        "Cast Exp",
        "float[4,8] x) => (float[8,8] y",
        constants=HALVES,
    ),
}

OTHERS = {
    "an embedding": Case(
        "e = Gather(t, j) h = MatMul(e, w) y = Relu(h)",
        1,
        "",
        "int64[4] j) => (float[4,8] y",
        {"j": np.arange(4)},
        {"t": draw(200, 8)},
    ),
    "an embedding beside a wide norm": Case(
        "e = Gather(t, j) q = ReduceL2(e, last) h = MatMul(e, w) y = Mul(h, q)",
        2,
        "ReduceL2 Mul",
        "int64[4] j) => (float[4,8] y",
        {"j": np.arange(4)},
        {"t": draw(200, 8), "last": np.array([-1])},
    ),
    "a resize": Case(
        "h = Conv(x, k) r = Resize(h, , sc) y = Conv(r, k)",
        2,
        "",
        "float[1,4,5,5] x) => (float[1,4,10,10] y",
        {"x": draw(1, 4, 5, 5)},
        {"k": draw(4, 4, 1, 1), "sc": F([1, 1, 2, 2])},
    ),
    "top k": Case(
        "h = MatMul(x, w) a, i = TopK(h, k) y = Relu(a)",
        2,
        "",
        "float[4,8] x) => (float[4,2] y, int64[4,2] i",
        {"x": np.tile(np.arange(8, dtype=F), (4, 1))},
        {"k": np.array([2]), "w": np.eye(8, dtype=F)},
    ),
    "arg max": Case(
        "h = MatMul(x, w) y = ArgMax<axis = 1, keepdims = 0>(h)",
        1,
        "",
        "float[4,8] x) => (int64[4] y",
        {"x": np.tile(np.arange(8, dtype=F), (4, 1))},
        {"w": np.eye(8, dtype=F)},
    ),
    "a range": Case(
        "p = Range(zero, n, one) m = Mul(p, sc) h = MatMul(x, w) y = Add(h, m)",
        2,
        "Range Mul Add",
        constants={"zero": F(0), "n": F(8), "one": F(1), "sc": F(0.1)},
    ),
    "LSTM": Case(
        "h, , = LSTM<hidden_size = 4>(x, wl, rl) y = Relu(h)",
        2,
        "",
        "float[3,2,8] x) => (float[3,1,2,4] y",
        {"x": draw(3, 2, 8)},
        {"wl": draw(1, 16, 8), "rl": draw(1, 16, 4)},
    ),
    "GRU with its state": Case(
        "h, s = GRU<hidden_size = 4>(x, wl, rl) y = Relu(h)",
        3,
        "",
        "float[3,2,8] x) => (float[3,1,2,4] y, float[1,2,4] s",
        {"x": draw(3, 2, 8)},
        {"wl": draw(1, 12, 8), "rl": draw(1, 12, 4)},
    ),
    "quantized between": Case(
        "h = MatMul(x, w) q = QuantizeLinear(h, sc, zp) d = DequantizeLinear(q, sc, zp) "
        "y = MatMul(d, v)",
        4,
        "QuantizeLinear DequantizeLinear",
        constants={"sc": F(0.02), "zp": np.int8(0)},
        tolerance=3e-2,
    ),
    "a sequence": Case(
        "h = MatMul(x, w) s = SequenceConstruct(h, x) c = ConcatFromSequence<axis = 0>(s) "
        "y = MatMul(c, v)",
        4,
        "SequenceConstruct ConcatFromSequence",
        "float[4,8] x) => (float[8,8] y",
    ),
    "concat and split": Case(
        "h = MatMul(x, w) c = Concat<axis = 1>(h, x) p, q = Split<axis = 1, num_outputs = 2>(c) "
        "y = MatMul(p, v) z = Relu(q)",
        # One in (x is read narrow twice), two out.
        3,
        "",
        "float[4,8] x) => (float[4,8] y, float[4,8] z",
    ),
    "a padded convolution": Case(
        "p = Pad(x, ps) h = Conv(p, k) m = MaxPool<kernel_shape = [2, 2]>(h) "
        "g = GlobalAveragePool(m) f = Flatten(g) y = Gemm(f, gw, gb)",
        2,
        "",
        "float[1,4,5,5] x) => (float[1,3] y",
        {"x": draw(1, 4, 5, 5)},
        {
            "ps": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
            "k": draw(4, 4, 3, 3),
            "gw": draw(4, 3),
            "gb": draw(3),
        },
    ),
}

for _opset in (9, 11, 13, 16, 18, 21, 22, 23):
    OTHERS[f"operator set {_opset}"] = Case(
        "h = MatMul(x, w) r = Relu(h) c = Concat<axis = 1>(r, x) m = Max(c, c) y = MatMul(m, u)",
        2,
        constants={"u": draw(16, 8)},
        opset=_opset,
    )


@pytest.mark.parametrize("name", CASTS)
def test_casts_and_integers(name):
    CASTS[name].check()


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name):
    OTHERS[name].check()
