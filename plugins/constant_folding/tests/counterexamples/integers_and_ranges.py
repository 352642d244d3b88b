"""Counterexamples to naive rewrites: integers, ranges, shapes."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, M, S, constant, i64

INTEGERS = {
    "int8 add wraps": constant(
        "y = Add(k, l)", "int32", constants={"k": np.int32([2**31 - 1]), "l": np.int32([1])}
    ),
    "int32 mul wraps": constant(
        "y = Mul(k, l)", "int32", constants={"k": np.int32([2**20]), "l": np.int32([2**15])}
    ),
    "uint8 sub wraps": constant(
        "y = Sub(k, l)", "uint8", constants={"k": np.uint8([1]), "l": np.uint8([3])}, opset=14
    ),
    "division of negatives": constant(
        "y = Div(k, l)",
        "int32",
        constants={"k": np.int32([7, -7, 7, -7]), "l": np.int32([2, 2, -2, -2])},
    ),
    "division of shapes": Counterexample(
        "g (float[N] x) => (int64[?] y) { s = Shape(x) a = Sub(k, s) y = Div(a, l) }",
        {"k": i64(0), "l": i64(2)},
        {"x": np.ones(7, F)},
    ),
    "division by zero": constant(
        "y = Div(k, l)",
        "int32",
        constants={"k": np.int32([7]), "l": np.int32([0])},
        left=("Div",),
        runs=False,
    ),
    "modulo of negatives": constant(
        "y = Mod(k, l)",
        "int32",
        constants={"k": np.int32([7, -7, 7, -7]), "l": np.int32([3, 3, -3, -3])},
    ),
    "fmod of negatives": constant(
        "y = Mod <fmod = 1> (k, l)",
        "int32",
        constants={"k": np.int32([7, -7, 7, -7]), "l": np.int32([3, 3, -3, -3])},
    ),
    "fmod of floats": constant(
        "y = Mod <fmod = 1> (k, l)", constants={"k": S, "l": np.full(8, 0.7, F)}
    ),
    "modulo by zero": constant(
        "y = Mod(k, l)",
        "int32",
        constants={"k": np.int32([7]), "l": np.int32([0])},
        left=("Mod",),
        runs=False,
    ),
    "negation of the least": constant("y = Neg(k)", "int32", constants={"k": np.int32([-(2**31)])}),
    "absolute of the least": constant("y = Abs(k)", "int32", constants={"k": np.int32([-(2**31)])}),
    "integer powers": constant(
        "y = Pow(k, l)", "int32", constants={"k": np.int32([2, -3, 5]), "l": np.int32([10, 3, 0])}
    ),
    "integer power of a float": constant(
        "y = Pow(k, l)", "int32", constants={"k": np.int32([4, 9]), "l": np.array([0.5, 1.5], F)}
    ),
    "shift": constant(
        'y = BitShift <direction = "LEFT"> (k, l)',
        "uint8",
        constants={"k": np.uint8([1, 255]), "l": np.uint8([7, 1])},
    ),
    "integer mean": constant(
        "y = ReduceMean <axes = [0], keepdims = 0> (k)",
        "int32",
        rank=0,
        constants={"k": np.int32([1, 2, -6])},
    ),
    "integer sum wraps": constant(
        "y = ReduceSum <keepdims = 0> (k)",
        "int32",
        rank=0,
        constants={"k": np.int32([2**31 - 1, 2])},
    ),
    "cumsum backwards, exclusive": constant(
        "y = CumSum <exclusive = 1, reverse = 1> (k, l)", constants={"k": M[0], "l": np.int64(0)}
    ),
    "arg max of ties": constant(
        "y = ArgMax <select_last_index = 1, keepdims = 0> (k)",
        "int64",
        rank=0,
        constants={"k": np.array([1, 3, 3, 2], F)},
    ),
    "range": constant(
        "y = Range(a, b, c)",
        "int64",
        constants={"a": np.int64(5), "b": np.int64(-4), "c": np.int64(-3)},
    ),
    "range of floats": constant(
        "y = Range(a, b, c)",
        constants={"a": F(0), "b": F(1), "c": F(0.1)},
        left=("Range",),
    ),
    "range of floats that are exact": constant(
        "y = Range(a, b, c)",
        constants={"a": F(0), "b": F(1), "c": F(0.25)},
        gone=("Range",),
    ),
    "range of nothing": constant(
        "y = Range(a, b, c)",
        "int64",
        constants={"a": np.int64(5), "b": np.int64(5), "c": np.int64(1)},
    ),
    "rounding to even": constant(
        "y = Round(k)", constants={"k": np.array([0.5, 1.5, -0.5, 2.5, -2.5], F)}
    ),
    "sign of zero and NaN": constant("y = Sign(k)", constants={"k": S[[0, 3, 4, 5, 6]]}),
    "max of NaN": constant("y = Max(k, l)", constants={"k": S, "l": S[::-1].copy()}),
    "reduce max of NaN": constant(
        "y = ReduceMax <keepdims = 0> (k)", rank=0, constants={"k": S[[5, 6]]}
    ),
    "top k of ties": Counterexample(
        "g (float[1] x) => (float[?] y, int64[?] z) { y, z = TopK <largest = 0> (k, l) }",
        {"k": np.array([3, 1, 2, 1], F), "l": i64(3)},
    ),
    "one hot beyond": constant(
        "y = OneHot(k, l, m)",
        rank=2,
        constants={"k": i64(0, -1, 5), "l": np.int64(3), "m": np.array([0, 1], F)},
    ),
    "nonzero": constant(
        "y = NonZero(k)", "int64", rank=2, constants={"k": np.array([[0, 1], [2, 0]], F)}
    ),
    "nonzero of NaN and -0": constant("y = NonZero(k)", "int64", rank=2, constants={"k": S}),
    "unique": Counterexample(
        "g (float[1] x) => (float[?] y, int64[?] z, int64[?] u, int64[?] v)"
        " { y, z, u, v = Unique <sorted = 0> (k) }",
        {"k": np.array([2, 1, 1, 3, 2], F)},
    ),
    "trilu beyond": constant(
        "y = Trilu <upper = 0> (k, l)", rank=2, constants={"k": M, "l": np.int64(-5)}
    ),
    "eye like": constant("y = EyeLike <k = 1, dtype = 6> (k)", "int32", rank=2, constants={"k": M}),
    "constant of shape": constant(
        "y = ConstantOfShape <value = int32[1] {7}> (k)",
        "int32",
        rank=2,
        constants={"k": i64(2, 3)},
    ),
    "constant of shape without value": constant(
        "y = ConstantOfShape(k)", rank=2, constants={"k": i64(2, 0)}
    ),
    "constant of shape of a scalar": constant(
        "y = ConstantOfShape <value = float[1] {7}> (k)", rank=0, constants={"k": i64()}
    ),
    "huge constant of shape": Counterexample(
        "g (float[1] x) => (float[1] y) { a = ConstantOfShape(k) b = Gather(a, l) c = Reshape(b, m)"
        " y = Add(x, c) }",
        {"k": i64(2**22), "l": i64(5), "m": i64(1)},
        left=("ConstantOfShape",),
    ),
    "shape with start and end": Counterexample(
        "g (float[N, 3, 4] x) => (int64[?] y) { y = Shape <start = -2, end = 2> (x) }"
    ),
    "shape beyond": Counterexample(
        "g (float[2, 3] x) => (int64[?] y) { y = Shape <start = -9, end = 9> (x) }"
    ),
    "shape of nothing": Counterexample(
        "g (float[2, 3] x) => (int64[?] y) { y = Shape <start = 2> (x) }"
    ),
    "size": Counterexample("g (float[N, 3] x) => (int64 y) { y = Size(x) }"),
    "size of static": Counterexample("g (float[2, 3] x) => (int64 y) { y = Size(x) }"),
    "shape of N and constant": Counterexample(
        "g (float[N, 3] x) => (float[?, ?] y) { s = Shape(x) n = Gather(s, a) u = Unsqueeze(n, b)"
        " t = Concat <axis = 0> (u, c) y = Reshape(x, t) }",
        {"a": np.int64(0), "b": i64(0), "c": i64(-1)},
    ),
    "shape times two": Counterexample(
        "g (float[N, 4] x) => (float[?, ?] y) { s = Shape(x) t = Mul(s, k) d = Div(t, l)"
        " y = Reshape(x, d) }",
        {"k": i64(2, 1), "l": i64(1, 2)},
    ),
}
