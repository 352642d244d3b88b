"""Counterexamples to naive rewrites: neutral elements, casts."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, S, constant, i64, unary
from onnx import TensorProto, helper

ZERO, MINUS, ONE = {"k": F(0)}, {"k": F(-0.0)}, {"k": F(1)}

IDENTITIES = {
    "x * 0": unary("y = Mul(x, k)", constants=ZERO, left=("Mul",)),
    "x + 0": unary("y = Add(x, k)", constants=ZERO, left=("Add",)),
    "0 + x": unary("y = Add(k, x)", constants=ZERO, left=("Add",)),
    "x + -0": unary("y = Add(x, k)", constants=MINUS),
    "x - 0": unary("y = Sub(x, k)", constants=ZERO),
    "x - -0": unary("y = Sub(x, k)", constants=MINUS, left=("Sub",)),
    "0 - x": unary("y = Sub(k, x)", constants=ZERO, left=("Sub",)),
    "x - x": unary("y = Sub(x, x)", left=("Sub",)),
    "x / x": unary("y = Div(x, x)", left=("Div",)),
    "1 / x": unary("y = Div(k, x)", constants=ONE, left=("Div",)),
    "x / 1": unary("y = Div(x, k)", constants=ONE),
    "0 / x": unary("y = Div(k, x)", constants=ZERO, left=("Div",)),
    "x ** 0": unary("y = Pow(x, k)", constants=ZERO),
    "x ** 1": unary("y = Pow(x, k)", constants=ONE),
    "1 ** x": unary("y = Pow(k, x)", constants=ONE),
    "x ** 2": unary("y = Pow(x, k)", constants={"k": F(2)}, tolerance=1e-6),
    "x ** 0.5": unary("y = Pow(x, k)", constants={"k": F(0.5)}, tolerance=1e-6),
    "x == x": Counterexample("g (float[N] x) => (bool[?] y) { y = Equal(x, x) }", feeds={"x": S}),
    "max(x, x)": unary("y = Max(x, x)"),
    "min(x, -inf)": unary("y = Min(x, k)", constants={"k": F(-np.inf)}),
    "max(x, -inf)": unary("y = Max(x, k)", constants={"k": F(-np.inf)}),
    "neg neg": unary("a = Neg(x) y = Neg(a)"),
    "reciprocal twice": unary("a = Reciprocal(x) y = Reciprocal(a)", left=("Reciprocal",)),
    "relu relu": unary("a = Relu(x) y = Relu(a)"),
    "abs neg": unary("a = Neg(x) y = Abs(a)"),
    "sqrt of square": unary("a = Mul(x, x) y = Sqrt(a)", tolerance=1e-6),
    "add then sub": unary("a = Add(x, k) y = Sub(a, k)", constants={"k": F(1e8)}),
    "mul then div": unary("a = Mul(x, k) y = Div(a, k)", constants={"k": F(3e38)}),
    "two muls": unary(
        "a = Mul(x, k) y = Mul(a, l)", constants={"k": F(1e30), "l": F(1e-30)}, left=("Mul",)
    ),
    "clip without limits": unary("y = Clip(x)"),
    "clip min above max": unary("y = Clip(x, k, l)", constants={"k": F(2), "l": F(1)}),
    "clip limits infinite": unary("y = Clip(x, k, l)", constants={"k": F(-np.inf), "l": F(np.inf)}),
    "broadcasting one": Counterexample(
        "g (float[N] x) => (float[?, ?] y) { y = Mul(x, k) }", {"k": np.ones((3, 1), F)}, {"x": S}
    ),
    "broadcasting one, same rank": Counterexample(
        "g (float[1, 3] x) => (float[?, ?] y) { y = Mul(x, k) }", {"k": np.ones((2, 3), F)}
    ),
    "broadcasting one of rank one": Counterexample(
        "g (float x) => (float[?] y) { y = Mul(x, k) }", {"k": np.ones(1, F)}
    ),
    "broadcasting zeros": Counterexample(
        "g (float[N] x) => (float[?, ?] y) { y = Sub(x, k) }", {"k": np.zeros((2, 1), F)}
    ),
    "broadcasting nothing": Counterexample(
        "g (float[1] x) => (float[?] y) { y = Mul(x, k) }", {"k": np.ones(0, F)}
    ),
    "one against N that may be 1": Counterexample(
        "g (float[N] x) => (float[?] y) { y = Mul(x, k) }",
        {"k": np.ones(3, F)},
        {"x": np.ones(1, F)},
    ),
    "integer + 0": Counterexample(
        "g (int32[3] x) => (int32[?] y) { y = Add(x, k) }", {"k": np.int32(0)}
    ),
    "integer * 0": Counterexample(
        "g (int32[3] x) => (int32[?] y) { y = Mul(x, k) }", {"k": np.int32(0)}
    ),
    "integer power of one": Counterexample(
        "g (int32[3] x) => (int32[?] y) { y = Pow(x, k) }", {"k": F(1)}, {"x": np.int32([1, -2, 7])}
    ),
    "and true": Counterexample(
        "g (bool[3] x) => (bool[?] y) { y = And(x, k) }", {"k": np.array(True)}
    ),
    "and false, broadcasting": Counterexample(
        "g (bool[3] x) => (bool[?, ?] y) { y = And(x, k) }", {"k": np.zeros((2, 1), bool)}
    ),
    "xor true": Counterexample(
        "g (bool[3] x) => (bool[?] y) { y = Xor(x, k) }", {"k": np.array(True)}
    ),
    "or false, broadcasting": Counterexample(
        "g (bool[3] x) => (bool[?, ?] y) { y = Or(x, k) }", {"k": np.zeros((2, 1), bool)}
    ),
    "where true, broadcasting other": Counterexample(
        "g (float[3] x, float[2, 1] v) => (float[?, ?] y) { y = Where(k, x, v) }",
        {"k": np.array(True)},
    ),
    "where true, broadcasting condition": Counterexample(
        "g (float[3] x) => (float[?, ?] y) { y = Where(k, x, x) }", {"k": np.ones((2, 1), bool)}
    ),
    "where of no elements": Counterexample(
        "g (float[1] x) => (float[?] y) { y = Where(k, x, x) }", {"k": np.ones(0, bool)}
    ),
    "where mixed": unary("y = Where(k, x, x)", constants={"k": np.array([True, False] * 4)}),
}

CASTS = {
    "float to int to float": Counterexample(
        "g (float[3] x) => (float[?] y) { a = Cast <to = 6> (x) y = Cast <to = 1> (a) }",
        feeds={"x": np.array([1.5, -2.5, 7], F)},
    ),
    "float to half to float": Counterexample(
        "g (float[3] x) => (float[?] y) { a = Cast <to = 10> (x) y = Cast <to = 1> (a) }",
        feeds={"x": np.array([1 / 3, 1e6, 1e-9], F)},
    ),
    "double to float to double": Counterexample(
        "g (double[2] x) => (double[?] y) { a = Cast <to = 1> (x) y = Cast <to = 11> (a) }",
        feeds={"x": np.array([1 / 3, 1e300])},
    ),
    "float to double to float": Counterexample(
        "g (float[8] x) => (float[?] y) { a = Cast <to = 11> (x) y = Cast <to = 1> (a) }",
        feeds={"x": S},
    ),
    "double to float to half": Counterexample(
        "g (double[1] x) => (float16[?] y) { a = Cast <to = 1> (x) y = Cast <to = 10> (a) }",
        feeds={"x": np.array([1 + 2**-11 + 2**-30])},
    ),
    "float to bool to float": Counterexample(
        "g (float[8] x) => (float[?] y) { a = Cast <to = 9> (x) y = Cast <to = 1> (a) }",
        feeds={"x": S},
    ),
    "int to bool to int": Counterexample(
        "g (int32[3] x) => (int32[?] y) { a = Cast <to = 9> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.int32([256, 0, -1])},
    ),
    "int64 to int32 to int64": Counterexample(
        "g (int64[2] x) => (int64[?] y) { a = Cast <to = 6> (x) y = Cast <to = 7> (a) }",
        feeds={"x": i64(2**40 + 3, -1)},
    ),
    "int32 to uint8 to int32": Counterexample(
        "g (int32[3] x) => (int32[?] y) { a = Cast <to = 2> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.int32([-1, 256, 300])},
    ),
    "int64 to float to int64": Counterexample(
        "g (int64[2] x) => (int64[?] y) { a = Cast <to = 1> (x) y = Cast <to = 7> (a) }",
        feeds={"x": i64(2**24 + 1, 3)},
    ),
    "int8 to float to uint8": Counterexample(
        "g (int8[2] x) => (uint8[?] y) { a = Cast <to = 1> (x) y = Cast <to = 2> (a) }",
        feeds={"x": np.int8([1, 100])},
    ),
    "uint8 to int8 to int32": Counterexample(
        "g (uint8[2] x) => (int32[?] y) { a = Cast <to = 3> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.uint8([1, 200])},
    ),
    "cast to the same": unary(
        "y = Cast <to = 1> (x)",
    ),
    "constant float to int": constant(
        "y = Cast <to = 6> (k)", "int32", constants={"k": np.array([1.9, -1.9, 0.5, -0.0], F)}
    ),
    "constant float beyond int": constant(
        "y = Cast <to = 6> (k)",
        "int32",
        constants={"k": np.array([3e9, -3e9, 1], F)},
        left=("Cast",),
    ),
    "constant NaN to int": constant(
        "y = Cast <to = 7> (k)", "int64", constants={"k": S}, left=("Cast",)
    ),
    "constant beyond uint8": constant(
        "y = Cast <to = 2> (k)", "uint8", constants={"k": np.array([-1, 256], F)}, left=("Cast",)
    ),
    "constant int wraps": constant(
        "y = Cast <to = 3> (k)", "int8", constants={"k": i64(128, 255, 256, -129)}
    ),
    "constant NaN to bool": constant("y = Cast <to = 9> (k)", "bool", constants={"k": S}),
    "constant to half": constant(
        "y = Cast <to = 10> (k)",
        "float16",
        constants={"k": np.array([1 / 3, 65519, 65520, 2**-25, 2**-24, 1 + 2**-11, -1e-9], F)},
    ),
    "constant to bfloat16": constant(
        "a = Cast <to = 16> (k) y = Cast <to = 1> (a)",
        constants={"k": np.array([1 / 3, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -0.0], F)},
    ),
    "constant double to half": constant(
        "y = Cast <to = 10> (k)", "float16", constants={"k": np.array([1 + 2**-11 + 2**-30, 0.1])}
    ),
    "float8, saturating": constant(
        "a = Cast <to = 17> (k) y = Cast <to = 1> (a)",
        constants={"k": np.array([1e6, -1e6, 449, 0.001, np.nan, np.inf], F)},
        opset=19,
        ir=9,
    ),
    "float8, not saturating": constant(
        "a = Cast <to = 17, saturate = 0> (k) y = Cast <to = 1> (a)",
        constants={"k": np.array([1e6, -1e6, 449, 0.001, np.nan, np.inf], F)},
        opset=19,
        ir=9,
    ),
    "float8 e5m2, not saturating": constant(
        "a = Cast <to = 19, saturate = 0> (k) y = Cast <to = 1> (a)",
        constants={"k": np.array([1e6, -1e6, 60000, 0.001, np.inf], F)},
        opset=19,
        ir=9,
    ),
    "float8, saturating or not, in pairs": Counterexample(
        "g (float[3] x) => (float[?] y, float[?] z) { a = Cast <to = 17> (x)"
        " b = Cast <to = 17, saturate = 0> (x) y = Cast <to = 1> (a) z = Cast <to = 1> (b) }",
        feeds={"x": np.array([1e6, 449, 1], F)},
        opset=19,
        ir=9,
    ),
    "half arithmetic": constant(
        "y = Add(k, l)",
        "float16",
        constants={
            "k": np.array([2048, 65504, 1], np.float16),
            "l": np.array([1, 16, 2**-11], np.float16),
        },
    ),
    "half sum": constant(
        "y = ReduceSum <keepdims = 0> (k)",
        "float16",
        rank=0,
        constants={"k": np.ones(4096, np.float16)},
    ),
    "half matmul": constant(
        "y = MatMul(k, l)",
        "float16",
        rank=2,
        constants={"k": np.full((1, 64), 0.1, np.float16), "l": np.full((64, 1), 0.1, np.float16)},
    ),
    "string to number": constant(
        "y = Cast <to = 1> (k)",
        constants={
            "k": helper.make_tensor("k", TensorProto.STRING, [4], [b"1.5", b"-2", b"1e3", b"0"])
        },
    ),
    "number to string": constant(
        "y = Cast <to = 8> (k)", "string", constants={"k": np.array([0.1, 1e20], F)}, left=("Cast",)
    ),
    "integer to string": constant(
        "y = Cast <to = 8> (k)", "string", constants={"k": i64(-1, 2**40)}
    ),
    "cast like": Counterexample(
        "g (float[2] x, double[1] v) => (double[?] y) { y = CastLike(x, v) }",
    ),
    "int4": constant(
        "a = Cast <to = 22> (k) y = Cast <to = 1> (a)",
        constants={"k": np.int8([-8, 7, 3])},
        opset=21,
        ir=10,
    ),
}
