"""Counterexamples to naive rewrites: fusions, reductions, shapes, names."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, M, S, constant, i64
from onnx import TensorProto, helper

W = np.array([[[[1.0, -2.0]]], [[[0.5, 3.0]]]], F)
IMAGE = {"x": np.array([[[[0.0, 1.0, -1.0]]]], F)}


def after_conv(body, constants, **options):
    options.setdefault("tolerance", 1e-5)
    return Counterexample(
        f"g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) {{ a = Conv(x, w) {body} }}",
        {"w": W, **constants},
        IMAGE,
        **options,
    )


def row(*numbers):
    return np.array(numbers, F).reshape(1, -1, 1, 1)


NORM = {"s": np.array([1, 2], F), "b": np.array([0, 1], F), "m": np.array([0, 1], F)}

FUSIONS = {
    "conv times inf": after_conv("y = Mul(a, k)", {"k": row(np.inf, 1)}),
    "conv times NaN": after_conv("y = Mul(a, k)", {"k": row(np.nan, 1)}),
    "conv over zero": after_conv("y = Div(a, k)", {"k": row(0, 1)}),
    "conv over a denormal": after_conv("y = Div(a, k)", {"k": row(1e-40, 1)}),
    "conv times what overflows": after_conv(
        "b = Mul(a, k) y = Mul(b, l)", {"k": F(3e38), "l": F(2)}
    ),
    "conv plus inf": after_conv("y = Add(a, k)", {"k": row(np.inf, -np.inf)}),
    "conv plus a row of pixels": after_conv("y = Add(a, k)", {"k": np.ones((1, 1, 1, 2), F)}),
    "conv plus what adds a batch": after_conv("y = Add(a, k)", {"k": np.ones((2, 1, 1, 1), F)}),
    "conv minus, the other way": after_conv("y = Sub(k, a)", {"k": row(1, 2)}),
    "constant over conv": after_conv("y = Div(k, a)", {"k": row(1, 2)}),
    "conv that is read twice": after_conv("b = Mul(a, k) y = Add(a, b)", {"k": row(2, 3)}),
    "conv that is an output": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] a, float[?, ?, ?, ?] y)
        { a = Conv(x, w) y = Mul(a, k) }""",
        {"w": W, "k": row(2, 3)},
        IMAGE,
        tolerance=1e-5,
    ),
    "weights that two convolutions read": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y, float[?, ?, ?, ?] z)
        { a = Conv(x, w) y = Mul(a, k) z = Conv(x, w) }""",
        {"w": W, "k": row(2, 3)},
        IMAGE,
        tolerance=1e-5,
    ),
    "weights that are an output": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[2, 1, 1, 2] w, float[?, ?, ?, ?] y)
        { a = Conv(x, w) y = Mul(a, k) }""",
        {"w": W, "k": row(2, 3)},
        IMAGE,
        tolerance=1e-5,
    ),
    "weights with a default": Counterexample(
        """g (float[1, 1, 1, 3] x, float[2, 1, 1, 2] w) => (float[?, ?, ?, ?] y)
        { a = Conv(x, w) y = Mul(a, k) }""",
        {"w": W, "k": row(2, 3)},
        {**IMAGE, "w": 2 * W},
        tolerance=1e-5,
    ),
    "normalization by a variance of 0": after_conv(
        "y = BatchNormalization(a, s, b, m, v)", {**NORM, "v": np.array([0, 1], F)}
    ),
    "normalization by a negative variance": after_conv(
        "y = BatchNormalization(a, s, b, m, v)", {**NORM, "v": np.array([-1, 1], F)}
    ),
    "normalization with an epsilon": after_conv(
        "y = BatchNormalization <epsilon = 0.5> (a, s, b, m, v)", {**NORM, "v": np.array([0, 1], F)}
    ),
    "padding with ones before conv": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p, o) y = Conv(a, w) }""",
        {"w": W, "p": i64(0, 0, 0, 1, 0, 0, 0, 1), "o": F(1)},
        IMAGE,
        tolerance=1e-5,
    ),
    "padding with zeros before max pool": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p)
        y = MaxPool <kernel_shape = [1, 2]> (a) }""",
        {"p": i64(0, 0, 0, 1, 0, 0, 0, 1)},
        {"x": -1 - np.abs(IMAGE["x"])},
    ),
    "padding of channels before conv": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p) y = Conv(a, w) }""",
        {"w": np.ones((1, 2, 1, 1), F), "p": i64(0, 1, 0, 0, 0, 0, 0, 0)},
        IMAGE,
    ),
    "negative padding before conv": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p) y = Conv(a, w) }""",
        {"w": np.ones((1, 1, 1, 1), F), "p": i64(0, 0, 0, -1, 0, 0, 0, 1)},
        IMAGE,
    ),
    "padding before auto_pad": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p)
        y = Conv <auto_pad = "SAME_UPPER"> (a, w) }""",
        {"w": W, "p": i64(0, 0, 0, 1, 0, 0, 0, 0)},
        IMAGE,
        tolerance=1e-5,
    ),
    "padding before average pool": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Pad(x, p)
        y = AveragePool <kernel_shape = [1, 2]> (a) }""",
        {"p": i64(0, 0, 0, 1, 0, 0, 0, 1)},
        IMAGE,
        tolerance=1e-6,
    ),
    "gemm with factors, then times": Counterexample(
        """g (float[2, 3] x) => (float[?, ?] y) { a = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)
        c = Mul(a, k) y = Add(c, b) }""",
        {"w": M.T.copy(), "b": np.array([1, 2], F), "k": np.array([3, 4], F)},
        tolerance=1e-5,
    ),
    "gemm of zero alpha": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { a = Gemm <alpha = 0.0> (x, w) y = Add(a, b) }",
        {"w": M.T.copy(), "b": np.array([1, 2], F)},
        tolerance=1e-5,
    ),
    "gemm plus a column": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { a = Gemm(x, w) y = Add(a, b) }",
        {"w": M.T.copy(), "b": np.array([[1], [2]], F)},
        tolerance=1e-5,
    ),
    "matmul plus what adds a dimension": Counterexample(
        "g (float[2, 3] x) => (float[?, ?, ?] y) { a = MatMul(x, w) y = Add(a, b) }",
        {"w": M.T.copy(), "b": np.ones((2, 1, 2), F)},
        tolerance=1e-5,
    ),
    "matmul of one column plus a row": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { a = MatMul(x, w) y = Add(a, b) }",
        {"w": np.ones((3, 1), F), "b": np.array([1, 2], F)},
        tolerance=1e-5,
    ),
    "matmul of integers plus": Counterexample(
        "g (int32[2, 3] x) => (int32[?, ?] y) { a = MatMul(x, w) y = Add(a, b) }",
        {"w": M.T.astype(np.int32).copy(), "b": np.int32([1, 2])},
    ),
    "matmul of a vector plus": Counterexample(
        "g (float[3] x) => (float[?] y) { a = MatMul(x, w) y = Add(a, b) }",
        {"w": M.T.copy(), "b": np.array([1, 2], F)},
        tolerance=1e-5,
    ),
    "transposes before gemm": Counterexample(
        """g (float[3, 2] x, float[4, 3] w) => (float[?, ?] y) { a = Transpose(x) b = Transpose(w)
        y = Gemm <transA = 0> (a, b) }""",
        tolerance=1e-5,
    ),
    "a transpose both operands read": Counterexample(
        """g (float[2, 2] x) => (float[?, ?] y) { a = Transpose(x)
        y = Gemm <transB = 1> (a, a) }""",
        tolerance=1e-5,
    ),
    "conv transpose times": Counterexample(
        """g (float[1, 1, 1, 3] x) => (float[?, ?, ?, ?] y) { a = ConvTranspose(x, w) b = Mul(a, k)
        y = Add(b, k) }""",
        {"w": W.reshape(1, 2, 1, 2), "k": row(2, 3)},
        IMAGE,
        tolerance=1e-5,
    ),
    "grouped conv times": Counterexample(
        """g (float[1, 2, 1, 3] x) => (float[?, ?, ?, ?] y) { a = Conv <group = 2> (x, w)
        y = Mul(a, k) }""",
        {"w": W, "k": row(2, 3)},
        tolerance=1e-5,
    ),
}

REDUCTIONS = {
    "sum of nothing": constant(
        "y = ReduceSum <keepdims = 0> (k)", rank=0, constants={"k": np.zeros(0, F)}
    ),
    "ReduceProd of no elements": constant(
        "y = ReduceProd <keepdims = 0> (k)", rank=0, constants={"k": np.zeros(0, F)}, opset=18
    ),
    "sum along nothing": constant(
        "y = ReduceSum <keepdims = 0> (k, l)", constants={"k": np.zeros((2, 0), F), "l": i64(1)}
    ),
    "sum along negative axes": constant(
        "y = ReduceSum <keepdims = 0> (k, l)", constants={"k": M, "l": i64(-2)}
    ),
    "log of a sum of exponentials, large": constant(
        "y = ReduceLogSumExp <keepdims = 0> (k)",
        rank=0,
        constants={"k": np.array([1000, 1000], F)},
        tolerance=1e-6,
    ),
    "mean of large floats": constant(
        "y = ReduceMean <keepdims = 0> (k)", rank=0, constants={"k": np.array([3e38, 3e38], F)}
    ),
    "least of nothing": constant(
        "y = ReduceMin <keepdims = 0> (k)", rank=0, constants={"k": np.zeros(0, F)}, opset=20, ir=9
    ),
    "greatest of booleans": constant(
        "y = ReduceMax <keepdims = 0> (k)",
        "bool",
        0,
        constants={"k": np.array([False, True])},
        opset=20,
        ir=9,
    ),
    "softmax of infinities": constant(
        "y = Softmax(k)", constants={"k": np.array([-np.inf, 0, 1], F)}, tolerance=1e-6
    ),
    "softmax of nothing but -inf": constant(
        "y = Softmax(k)", constants={"k": np.array([-np.inf, -np.inf], F)}, tolerance=1e-6
    ),
    "hardmax of ties": constant("y = Hardmax(k)", constants={"k": np.array([1, 3, 3], F)}),
    "arg min with ties": constant(
        "y = ArgMin <keepdims = 0> (k)", "int64", 0, constants={"k": np.array([2, 1, 1], F)}
    ),
    "layer normalization": constant(
        "y = LayerNormalization(k, l)",
        rank=2,
        constants={"k": M, "l": np.ones(3, F)},
        tolerance=1e-4,
    ),
    "is inf of one sign": constant(
        "y = IsInf <detect_negative = 0> (k)", "bool", constants={"k": S}
    ),
    "is NaN": constant("y = IsNaN(k)", "bool", constants={"k": S}),
    "clip of NaN": constant("y = Clip(k, l, l)", constants={"k": S, "l": F(1)}),
    "less of NaN": constant("y = Less(k, l)", "bool", constants={"k": S, "l": F(0)}),
    "not less is not greater or equal": Counterexample(
        "g (float[8] x) => (bool[?] y) { a = Less(x, k) y = Not(a) }", {"k": F(0)}, {"x": S}
    ),
    "equal of two zeros": constant(
        "y = Equal(k, l)", "bool", constants={"k": F([0.0]), "l": F([-0.0])}
    ),
    "reciprocal of two zeros": constant("y = Reciprocal(k)", constants={"k": F([0.0, -0.0])}),
    "division by zero of floats": constant(
        "y = Div(k, l)", constants={"k": F([1, -1, 0]), "l": F([0, 0, 0])}
    ),
    "square root of a negative": constant("y = Sqrt(k)", constants={"k": F([-1, -0.0, 4])}),
    "log of zero": constant("y = Log(k)", constants={"k": F([0, -1, 1])}),
    "ceil of -0.5": constant("y = Ceil(k)", constants={"k": F([-0.5, 0.5, -1.5])}),
    "relu of -0": constant("y = Relu(k)", constants={"k": F([-1, 2, 0])}),
    "leaky relu of infinities": constant("y = LeakyRelu(k)", constants={"k": S}),
    "prelu, broadcasting": constant(
        "y = PRelu(k, l)", rank=2, constants={"k": -M, "l": F([0.5, 1, 2])}
    ),
    "selu at 0": constant("y = Elu(k)", constants={"k": F([0, -0.0, 1])}),
    "hard sigmoid": constant(
        "y = HardSigmoid(k)", constants={"k": F([-10, 0, 1, 10])}, tolerance=1e-6
    ),
    "thresholded": constant("y = ThresholdedRelu(k)", constants={"k": F([1, 1.5, -1])}),
    "shrink": constant(
        "y = Shrink <lambd = 1.0, bias = 0.5> (k)", constants={"k": F([1, 1.5, -3])}
    ),
    "compress": constant(
        "y = Compress <axis = 1> (k, l)", rank=2, constants={"k": M, "l": np.array([False, True])}
    ),
    "compress without axis": constant(
        "y = Compress(k, l)", constants={"k": M, "l": np.array([False, True, False, True])}
    ),
    "reverse sequence": constant(
        "y = ReverseSequence <batch_axis = 0, time_axis = 1> (k, l)",
        rank=2,
        constants={"k": M, "l": i64(2, 3)},
    ),
    "space to depth": constant(
        "y = SpaceToDepth <blocksize = 2> (k)",
        rank=4,
        constants={"k": np.arange(16, dtype=F).reshape(1, 1, 4, 4)},
    ),
    "determinant": constant(
        "y = Det(k)", rank=0, constants={"k": F([[1, 2], [3, 4]])}, tolerance=1e-5
    ),
    "bitwise not": constant(
        "y = BitwiseNot(k)", "int32", constants={"k": np.int32([0, -1])}, opset=18
    ),
    "mean variance": constant(
        "y = MeanVarianceNormalization <axes = [1]> (k)", rank=2, constants={"k": M}, tolerance=1e-5
    ),
    "gather of texts": constant(
        "y = Gather(k, l)",
        "string",
        constants={
            "k": helper.make_tensor("k", TensorProto.STRING, [2], [b"ab", b"c"]),
            "l": i64(-1),
        },
    ),
}

_BATCH = "s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, axis0)"
_NUMBERS = {"zero": np.int64(0), "axis0": i64(0), "one": i64(1), "two": i64(2), "minus": i64(-1)}


def shapes(body, output="int64[?]", inputs="float[N, 3, 4] x", feeds=None):
    return Counterexample(f"g ({inputs}) => ({output} y) {{ {body} }}", _NUMBERS, feeds or {})


SHAPES = {
    "batch kept": shapes(
        f"{_BATCH} t = Concat <axis = 0> (u, minus) y = Reshape(x, t)", "float[?, ?]"
    ),
    "batch of nothing": shapes(
        f"{_BATCH} t = Concat <axis = 0> (u, minus) f = Reshape(x, t) y = Shape(f)",
        inputs="float[N, 3, 4] x",
    ),
    "static part alone": shapes("s = Shape(x) y = Slice(s, one, minus)"),
    "shape as floats": shapes(
        "s = Shape(x) f = Cast <to = 1> (s) h = Mul(f, x0) y = Cast <to = 7> (h)",
        inputs="float[N, 3, 4] x, float x0",
    ),
    "where on a shape": shapes(
        "s = Shape(x) q = Equal(s, one) y = Where(q, minus, s)", feeds={"x": np.ones((1, 3, 4), F)}
    ),
    "max of a shape": shapes("s = Shape(x) y = Max(s, two)", feeds={"x": np.ones((1, 3, 4), F)}),
    "modulo of a shape": shapes("s = Shape(x) a = Sub(axis0, s) y = Mod(a, two)"),
    "ReduceProd of a shape": shapes("s = Shape(x) y = ReduceProd <keepdims = 1> (s)"),
    "scatter into a shape": shapes("s = Shape(x) y = ScatterElements(s, one, minus)"),
    "range of a shape": shapes(
        "s = Shape(x) n = Gather(s, zero) a = Squeeze(axis0) o = Squeeze(one) y = Range(a, n, o)"
    ),
    "expand by a shape": shapes(
        "s = Shape(x) y = Expand(v, s)", "float[?, ?, ?]", "float[N, 3, 4] x, float[1] v"
    ),
    "a shape after broadcasting": shapes(
        "a = Add(x, v) y = Shape(a)",
        inputs="float[N, 3, 4] x, float[M, 1, 1, 4] v",
        feeds={"v": np.ones((5, 1, 1, 4), F)},
    ),
    "N broadcast to M": shapes(
        "a = Add(x, v) y = Shape(a)",
        inputs="float[N] x, float[M] v",
        feeds={"x": np.ones(1, F), "v": np.ones(5, F)},
    ),
    "squeeze of N": shapes(
        "a = Squeeze(x) y = Shape(a)", inputs="float[N, 1] x", feeds={"x": np.ones((1, 1), F)}
    ),
    "flatten of N": shapes("a = Flatten <axis = 2> (x) y = Shape(a)"),
    "half of N, and back": shapes(
        "s = Shape(x) h = Div(s, two) y = Mul(h, two)", feeds={"x": np.ones((5, 3, 4), F)}
    ),
    "slice of N, then its shape": shapes(
        "a = Slice(x, one, minus) y = Shape(a)", feeds={"x": np.ones((1, 3, 4), F)}
    ),
    "slice beyond N": shapes(
        "a = Slice(x, axis0, two) y = Shape(a)", feeds={"x": np.ones((1, 3, 4), F)}
    ),
    "concat of N and N": shapes("a = Concat <axis = 0> (x, x) y = Shape(a)"),
    "tile by N": shapes(f"{_BATCH} y = Tile(v, u)", "float[?]", "float[N, 3, 4] x, float[2] v"),
    "split of N": shapes(
        "a, b = Split <axis = 0> (x) y = Shape(a)", feeds={"x": np.ones((4, 3, 4), F)}
    ),
    "nonzero of N": shapes("a = NonZero(x) y = Shape(a)"),
}

NAMES = {
    "a value that is called as a node": Counterexample(
        "g (float[2] x) => (float[2] y) { [b] a = Neg(x) [a] b = Abs(a) y = Exp(b) }",
        tolerance=1e-6,
    ),
    "names that folding would create": Counterexample(
        """g (float[2, 6] x) => (float[?, ?] y, int64[?] z) { a = Reshape(x, k) b = Flatten(a)
        y = Neg(b) z = Identity(l) }""",
        {"k": i64(2, 2, 3), "l": i64(7)},
    ),
    "names of branches that are those outside, later": Counterexample(
        """g (float[2] x) => (float[2] y) { t = If(c) <then_branch = a () => (float[2] p)
        { v = Neg(x) p = Exp(v) }, else_branch = b () => (float[2] q) { q = Abs(x) }>
        v = Abs(t) p = Sqrt(v) y = Neg(p) }""",
        {"c": np.array(True)},
        tolerance=1e-6,
    ),
    "an initializer of a branch of the name of one outside, later": Counterexample(
        """g (float[2] x) => (float[2] y) { t = If(c) <then_branch = a () => (float[2] p)
        <float[2] w = {5, 6}> { p = Mul(x, w) }, else_branch = b () => (float[2] q) { q = Abs(x) }>
        w = Abs(t) y = Neg(w) }""",
        {"c": np.array(True)},
    ),
    "equal nodes in both branches": Counterexample(
        """g (float[2] x, bool c) => (float[2] y) { u = Exp(x) t = If(c) <then_branch = a () =>
        (float[2] p) { v = Exp(x) p = Neg(v) }, else_branch = b () => (float[2] q)
        { v = Exp(x) q = Abs(v) }> y = Add(t, u) }""",
        tolerance=1e-6,
    ),
    "constants in both branches": Counterexample(
        """g (float[2] x, bool c) => (float[2] y) { y = If(c) <then_branch = a () => (float[2] p)
        { k = Constant <value_floats = [1.0, 2.0]> () l = Neg(k) p = Add(x, l) },
        else_branch = b () => (float[2] q)
        { k = Constant <value_floats = [3.0, 4.0]> () l = Neg(k) q = Add(x, l) }> }"""
    ),
    "a loop whose body names an input as a value outside, later": Counterexample(
        """g (float[2] x) => (float[2] y) { t = Loop(n, , x) <body = l (int64 i, bool f, float[2] w)
        => (bool g, float[2] r) { g = Identity(f) r = Neg(w) }> w = Abs(t) y = Neg(w) }""",
        {"n": np.array(2)},
    ),
}
