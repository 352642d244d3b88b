"""Models that a naive folder gets wrong, by family; `test_traps.py` runs them."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Trap(NamedTuple):
    """A model and what to feed it.

    Attributes:
        text: ONNX text of the graph and of functions.
        constants: initializers by name.
        feeds: by name; what is not there is drawn.
        opset: the operator set.
        ir: the IR version.
        more: further operator sets, as text.
        tolerance: relative; 0 for the same bits.
        runs: whether onnxruntime takes the model; it refuses a constant divisor of 0.
        left: operators that must still be there afterwards.
        gone: operators that must not.
    """

    text: str
    constants: dict[str, Any] = {}
    feeds: dict[str, Any] = {}
    opset: int = 17
    ir: int = 8
    more: str = ""
    tolerance: float = 0
    runs: bool = True
    left: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


F = np.float32
S = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.25, 1e-40], F)
M = np.array([[1, 2, 3], [4, 5, 6]], F)
I = np.int64  # noqa: E741


def i64(*numbers):
    return np.array(numbers, np.int64)


def unary(body, **options):
    """Give a trap on eight special floats."""
    options.setdefault("feeds", {"x": S})
    return Trap(f"g (float[N] x) => (float[?] y) {{ {body} }}", **options)


def constant(body, kind="float", rank=1, **options):
    """Give a trap whose result follows from constants alone."""
    dims = f"[{', '.join('?' * rank)}]" if rank else ""
    options.setdefault("gone", ())
    return Trap(f"g (float[1] x) => ({kind}{dims} y, float[1] z) {{ z = Abs(x) {body} }}", **options)


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
    "x == x": Trap("g (float[N] x) => (bool[?] y) { y = Equal(x, x) }", feeds={"x": S}),
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
    "broadcasting one": Trap(
        "g (float[N] x) => (float[?, ?] y) { y = Mul(x, k) }", {"k": np.ones((3, 1), F)}, {"x": S}
    ),
    "broadcasting one, same rank": Trap(
        "g (float[1, 3] x) => (float[?, ?] y) { y = Mul(x, k) }", {"k": np.ones((2, 3), F)}
    ),
    "broadcasting one of rank one": Trap(
        "g (float x) => (float[?] y) { y = Mul(x, k) }", {"k": np.ones(1, F)}
    ),
    "broadcasting zeros": Trap(
        "g (float[N] x) => (float[?, ?] y) { y = Sub(x, k) }", {"k": np.zeros((2, 1), F)}
    ),
    "broadcasting nothing": Trap(
        "g (float[1] x) => (float[?] y) { y = Mul(x, k) }", {"k": np.ones(0, F)}
    ),
    "one against N that may be 1": Trap(
        "g (float[N] x) => (float[?] y) { y = Mul(x, k) }", {"k": np.ones(3, F)}, {"x": np.ones(1, F)}
    ),
    "integer + 0": Trap("g (int32[3] x) => (int32[?] y) { y = Add(x, k) }", {"k": np.int32(0)}),
    "integer * 0": Trap("g (int32[3] x) => (int32[?] y) { y = Mul(x, k) }", {"k": np.int32(0)}),
    "integer power of one": Trap(
        "g (int32[3] x) => (int32[?] y) { y = Pow(x, k) }", {"k": F(1)}, {"x": np.int32([1, -2, 7])}
    ),
    "and true": Trap("g (bool[3] x) => (bool[?] y) { y = And(x, k) }", {"k": np.array(True)}),
    "and false, broadcasting": Trap(
        "g (bool[3] x) => (bool[?, ?] y) { y = And(x, k) }", {"k": np.zeros((2, 1), bool)}
    ),
    "xor true": Trap("g (bool[3] x) => (bool[?] y) { y = Xor(x, k) }", {"k": np.array(True)}),
    "or false, broadcasting": Trap(
        "g (bool[3] x) => (bool[?, ?] y) { y = Or(x, k) }", {"k": np.zeros((2, 1), bool)}
    ),
    "where true, broadcasting other": Trap(
        "g (float[3] x, float[2, 1] v) => (float[?, ?] y) { y = Where(k, x, v) }",
        {"k": np.array(True)},
    ),
    "where true, broadcasting condition": Trap(
        "g (float[3] x) => (float[?, ?] y) { y = Where(k, x, x) }", {"k": np.ones((2, 1), bool)}
    ),
    "where of no elements": Trap(
        "g (float[1] x) => (float[?] y) { y = Where(k, x, x) }", {"k": np.ones(0, bool)}
    ),
    "where mixed": unary("y = Where(k, x, x)", constants={"k": np.array([True, False] * 4)}),
}

RESHAPES = {
    "reshape with 0": Trap(
        "g (float[N, 3] x) => (float[?, ?] y) { y = Reshape(x, k) }", {"k": i64(0, 3)}
    ),
    "reshape with 0 elsewhere": Trap(
        "g (float[2, 3, 2] x) => (float[?, ?, ?] y) { a = Transpose <perm = [1, 0, 2]> (x)"
        " y = Reshape(a, k) }",
        {"k": i64(0, 2, 2)},
    ),
    "two reshapes with 0": Trap(
        "g (float[2, 3, 4] x) => (float[?, ?] y) { a = Reshape(x, k) y = Reshape(a, l) }",
        {"k": i64(4, 3, 2), "l": i64(0, -1)},
    ),
    "reshape allowzero": Trap(
        "g (float[N, 0] x) => (float[?, ?] y) { y = Reshape <allowzero = 1> (x, k) }",
        {"k": i64(3, 0)},
        {"x": np.zeros((2, 0), F)},
    ),
    "reshape allowzero, then reshape": Trap(
        "g (float[0, 3] x) => (float[?, ?] y) { a = Reshape <allowzero = 1> (x, k)"
        " y = Reshape <allowzero = 1> (a, l) }",
        {"k": i64(3, 0), "l": i64(0, 5)},
    ),
    "reshape to a scalar": Trap("g (float[1] x) => (float y) { y = Reshape(x, k) }", {"k": i64()}),
    "expand to fewer dimensions": Trap(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Expand(x, k) }", {"k": i64(3)}
    ),
    "expand to one": Trap(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Expand(x, k) }", {"k": i64(1, 1)}
    ),
    "expand adds a dimension": Trap(
        "g (float[2, 3] x) => (float[?, ?, ?] y) { y = Expand(x, k) }", {"k": i64(1, 2, 3)}
    ),
    "expand N by one": Trap(
        "g (float[N] x) => (float[?] y) { y = Expand(x, k) }", {"k": i64(4)}, {"x": np.ones(1, F)}
    ),
    "expand to nothing": Trap(
        "g (float[1] x) => (float[?] y) { y = Expand(x, k) }", {"k": i64(0)}
    ),
    "squeeze without axes": Trap(
        "g (float[N, 1, 3] x) => (float[...] y) { y = Squeeze(x) }".replace("float[...]", "float[?]"),
        feeds={"x": np.ones((1, 1, 3), F)},
    ),
    "squeeze negative": Trap(
        "g (float[2, 1] x) => (float[?] y) { y = Squeeze(x, k) }", {"k": i64(-1)}
    ),
    "unsqueeze then squeeze elsewhere": Trap(
        "g (float[1, 3] x) => (float[?, ?] y) { a = Unsqueeze(x, k) y = Squeeze(a, l) }",
        {"k": i64(0), "l": i64(1)},
    ),
    "unsqueeze of unsorted axes": Trap(
        "g (float[2] x) => (float[?, ?, ?] y) { y = Unsqueeze(x, k) }", {"k": i64(2, 0)}
    ),
    "transpose, rank not known": Trap(
        "g (float[2, 3] x, bool c) => (float[?, ?] y) { a = If(c) <then_branch = t () =>"
        " (float[?, ?] p) { p = Neg(x) }, else_branch = e () => (float[?, ?] q) { q = Abs(x) }>"
        " b = Transpose(a) y = Transpose(b) }"
    ),
    "transpose of three": Trap(
        "g (float[2, 3, 4] x) => (float[?, ?, ?] y) { a = Transpose <perm = [1, 2, 0]> (x)"
        " y = Transpose <perm = [1, 2, 0]> (a) }"
    ),
    "flatten at 0": Trap("g (float[2, 3] x) => (float[?, ?] y) { y = Flatten <axis = 0> (x) }"),
    "flatten negative": Trap(
        "g (float[2, 3, 4] x) => (float[?, ?] y) { y = Flatten <axis = -1> (x) }"
    ),
    "flatten then reshape": Trap(
        "g (float[N, 3, 4] x) => (float[?, ?] y) { a = Flatten(x) y = Reshape(a, k) }",
        {"k": i64(-1, 6)},
    ),
    "slice all": Trap(
        "g (float[N, 3] x) => (float[?, ?] y) { y = Slice(x, k, l) }",
        {"k": i64(0, 0), "l": i64(2**63 - 1, 3)},
    ),
    "slice backwards": Trap(
        "g (float[N] x) => (float[?] y) { y = Slice(x, a, b, c, d) }",
        {"a": i64(-1), "b": i64(-(2**63)), "c": i64(0), "d": i64(-1)},
    ),
    "slice backwards by two": constant(
        "y = Slice(k, a, b, c, d)",
        constants={"k": S, "a": i64(100), "b": i64(-100), "c": i64(0), "d": i64(-2)},
    ),
    "slice beyond": constant(
        "y = Slice(k, a, b)", constants={"k": S, "a": i64(-100), "b": i64(100)}
    ),
    "slice of nothing": constant("y = Slice(k, a, b)", constants={"k": S, "a": i64(5), "b": i64(2)}),
    "slice of end of N": Trap(
        "g (float[N] x) => (float[?] y) { y = Slice(x, k, l) }", {"k": i64(0), "l": i64(-1)}
    ),
    "slice with int32": constant(
        "y = Slice(k, a, b)", constants={"k": S, "a": np.int32([1]), "b": np.int32([2**31 - 1])}
    ),
    "concat of an empty one": Trap(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Concat <axis = 0> (x, k) }",
        {"k": np.zeros((0, 3), F)},
    ),
    "concat of empties": constant(
        "y = Concat <axis = 0> (k, k)", constants={"k": np.zeros(0, F)}
    ),
    "concat negative axis": constant("y = Concat <axis = -1> (k, k)", rank=2, constants={"k": M}),
    "split of unequal": Trap(
        "g (float[5] x) => (float[?] y, float[?] z) { y, z = Split(x, k) }", {"k": i64(2, 3)}
    ),
    "split with num_outputs": Trap(
        "g (float[1] x) => (float[?] y, float[?] z) { y, z = Split <num_outputs = 2> (k) }",
        {"k": S[:7]},
        opset=18,
    ),
    "gather negative": constant(
        "y = Gather(k, l)", constants={"k": S, "l": i64(-1, -8, 0)}, gone=("Gather",)
    ),
    "gather a scalar": constant("y = Gather(k, l)", rank=0, constants={"k": S, "l": np.int64(-2)}),
    "gather along axis": constant(
        "y = Gather <axis = -1> (k, l)", rank=3, constants={"k": M, "l": i64(2, 0).reshape(1, 2)}
    ),
    "gather elements": constant(
        "y = GatherElements <axis = 1> (k, l)", rank=2, constants={"k": M, "l": i64(-1, 0).reshape(2, 1)}
    ),
    "gather nd with batches": constant(
        "y = GatherND <batch_dims = 1> (k, l)", constants={"k": M, "l": i64(1, 2).reshape(2, 1)}
    ),
    "scatter nd": constant(
        "y = ScatterND(k, l, m)",
        constants={"k": S, "l": i64(1, -1).reshape(2, 1), "m": np.array([7, 8], F)},
    ),
    "scatter elements adding twice": constant(
        'y = ScatterElements <reduction = "add"> (k, l, m)',
        constants={"k": S[5:], "l": i64(1, 1), "m": np.array([7, 8], F)},
    ),
    "tile": constant("y = Tile(k, l)", rank=2, constants={"k": M, "l": i64(2, 1)}),
    "tile by zero": constant("y = Tile(k, l)", rank=2, constants={"k": M, "l": i64(0, 1)}),
    "pad negative": constant(
        "y = Pad(k, l)", rank=2, constants={"k": M, "l": i64(-1, 0, 1, -1)}
    ),
    "pad with nothing but a mode": Trap(
        'g (float[3] x) => (float[?] y) { y = Pad <mode = "reflect"> (x, k) }', {"k": i64(0, 0)}
    ),
    "pad along axes": constant(
        "y = Pad(k, l, , m)", rank=2, constants={"k": M, "l": i64(1, 1), "m": i64(-1)}, opset=18
    ),
    "depth to space": constant(
        'y = DepthToSpace <blocksize = 2, mode = "CRD"> (k)',
        rank=4,
        constants={"k": np.arange(32, dtype=F).reshape(1, 8, 2, 2)},
    ),
}

CASTS = {
    "float to int to float": Trap(
        "g (float[3] x) => (float[?] y) { a = Cast <to = 6> (x) y = Cast <to = 1> (a) }",
        feeds={"x": np.array([1.5, -2.5, 7], F)},
    ),
    "float to half to float": Trap(
        "g (float[3] x) => (float[?] y) { a = Cast <to = 10> (x) y = Cast <to = 1> (a) }",
        feeds={"x": np.array([1 / 3, 1e6, 1e-9], F)},
    ),
    "double to float to double": Trap(
        "g (double[2] x) => (double[?] y) { a = Cast <to = 1> (x) y = Cast <to = 11> (a) }",
        feeds={"x": np.array([1 / 3, 1e300])},
    ),
    "float to double to float": Trap(
        "g (float[8] x) => (float[?] y) { a = Cast <to = 11> (x) y = Cast <to = 1> (a) }",
        feeds={"x": S},
    ),
    "double to float to half": Trap(
        "g (double[1] x) => (float16[?] y) { a = Cast <to = 1> (x) y = Cast <to = 10> (a) }",
        feeds={"x": np.array([1 + 2**-11 + 2**-30])},
    ),
    "float to bool to float": Trap(
        "g (float[8] x) => (float[?] y) { a = Cast <to = 9> (x) y = Cast <to = 1> (a) }",
        feeds={"x": S},
    ),
    "int to bool to int": Trap(
        "g (int32[3] x) => (int32[?] y) { a = Cast <to = 9> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.int32([256, 0, -1])},
    ),
    "int64 to int32 to int64": Trap(
        "g (int64[2] x) => (int64[?] y) { a = Cast <to = 6> (x) y = Cast <to = 7> (a) }",
        feeds={"x": i64(2**40 + 3, -1)},
    ),
    "int32 to uint8 to int32": Trap(
        "g (int32[3] x) => (int32[?] y) { a = Cast <to = 2> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.int32([-1, 256, 300])},
    ),
    "int64 to float to int64": Trap(
        "g (int64[2] x) => (int64[?] y) { a = Cast <to = 1> (x) y = Cast <to = 7> (a) }",
        feeds={"x": i64(2**24 + 1, 3)},
    ),
    "int8 to float to uint8": Trap(
        "g (int8[2] x) => (uint8[?] y) { a = Cast <to = 1> (x) y = Cast <to = 2> (a) }",
        feeds={"x": np.int8([1, 100])},
    ),
    "uint8 to int8 to int32": Trap(
        "g (uint8[2] x) => (int32[?] y) { a = Cast <to = 3> (x) y = Cast <to = 6> (a) }",
        feeds={"x": np.uint8([1, 200])},
    ),
    "cast to the same": unary("y = Cast <to = 1> (x)", ),
    "constant float to int": constant(
        "y = Cast <to = 6> (k)", "int32", constants={"k": np.array([1.9, -1.9, 0.5, -0.0], F)}
    ),
    "constant float beyond int": constant(
        "y = Cast <to = 6> (k)", "int32", constants={"k": np.array([3e9, -3e9, 1], F)}, left=("Cast",)
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
    "float8, saturating or not, in pairs": Trap(
        "g (float[3] x) => (float[?] y, float[?] z) { a = Cast <to = 17> (x)"
        " b = Cast <to = 17, saturate = 0> (x) y = Cast <to = 1> (a) z = Cast <to = 1> (b) }",
        feeds={"x": np.array([1e6, 449, 1], F)},
        opset=19,
        ir=9,
    ),
    "half arithmetic": constant(
        "y = Add(k, l)",
        "float16",
        constants={"k": np.array([2048, 65504, 1], np.float16), "l": np.array([1, 16, 2**-11], np.float16)},
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
        constants={"k": helper.make_tensor("k", TensorProto.STRING, [4], [b"1.5", b"-2", b"1e3", b"0"])},
    ),
    "number to string": constant(
        "y = Cast <to = 8> (k)", "string", constants={"k": np.array([0.1, 1e20], F)}, left=("Cast",)
    ),
    "integer to string": constant(
        "y = Cast <to = 8> (k)", "string", constants={"k": i64(-1, 2**40)}
    ),
    "cast like": Trap(
        "g (float[2] x, double[1] v) => (double[?] y) { y = CastLike(x, v) }",
    ),
    "int4": constant(
        "a = Cast <to = 22> (k) y = Cast <to = 1> (a)",
        constants={"k": np.int8([-8, 7, 3])},
        opset=21,
        ir=10,
    ),
}

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
        "y = Div(k, l)", "int32", constants={"k": np.int32([7, -7, 7, -7]), "l": np.int32([2, 2, -2, -2])}
    ),
    "division of shapes": Trap(
        "g (float[N] x) => (int64[?] y) { s = Shape(x) a = Sub(k, s) y = Div(a, l) }",
        {"k": i64(0), "l": i64(2)},
        {"x": np.ones(7, F)},
    ),
    "division by zero": constant(
        "y = Div(k, l)", "int32", constants={"k": np.int32([7]), "l": np.int32([0])}, left=("Div",), runs=False
    ),
    "modulo of negatives": constant(
        "y = Mod(k, l)", "int32", constants={"k": np.int32([7, -7, 7, -7]), "l": np.int32([3, 3, -3, -3])}
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
        "y = Mod(k, l)", "int32", constants={"k": np.int32([7]), "l": np.int32([0])}, left=("Mod",), runs=False
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
        "y = ReduceMean <axes = [0], keepdims = 0> (k)", "int32", rank=0, constants={"k": np.int32([1, 2, -6])}
    ),
    "integer sum wraps": constant(
        "y = ReduceSum <keepdims = 0> (k)", "int32", rank=0, constants={"k": np.int32([2**31 - 1, 2])}
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
        "y = Range(a, b, c)", "int64", constants={"a": np.int64(5), "b": np.int64(-4), "c": np.int64(-3)}
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
        "y = Range(a, b, c)", "int64", constants={"a": np.int64(5), "b": np.int64(5), "c": np.int64(1)}
    ),
    "rounding to even": constant("y = Round(k)", constants={"k": np.array([0.5, 1.5, -0.5, 2.5, -2.5], F)}),
    "sign of zero and NaN": constant("y = Sign(k)", constants={"k": S[[0, 3, 4, 5, 6]]}),
    "max of NaN": constant("y = Max(k, l)", constants={"k": S, "l": S[::-1].copy()}),
    "reduce max of NaN": constant(
        "y = ReduceMax <keepdims = 0> (k)", rank=0, constants={"k": S[[5, 6]]}
    ),
    "top k of ties": Trap(
        "g (float[1] x) => (float[?] y, int64[?] z) { y, z = TopK <largest = 0> (k, l) }",
        {"k": np.array([3, 1, 2, 1], F), "l": i64(3)},
    ),
    "one hot beyond": constant(
        "y = OneHot(k, l, m)",
        rank=2,
        constants={"k": i64(0, -1, 5), "l": np.int64(3), "m": np.array([0, 1], F)},
    ),
    "nonzero": constant("y = NonZero(k)", "int64", rank=2, constants={"k": np.array([[0, 1], [2, 0]], F)}),
    "nonzero of NaN and -0": constant("y = NonZero(k)", "int64", rank=2, constants={"k": S}),
    "unique": Trap(
        "g (float[1] x) => (float[?] y, int64[?] z, int64[?] u, int64[?] v)"
        " { y, z, u, v = Unique <sorted = 0> (k) }",
        {"k": np.array([2, 1, 1, 3, 2], F)},
    ),
    "trilu beyond": constant("y = Trilu <upper = 0> (k, l)", rank=2, constants={"k": M, "l": np.int64(-5)}),
    "eye like": constant("y = EyeLike <k = 1, dtype = 6> (k)", "int32", rank=2, constants={"k": M}),
    "constant of shape": constant(
        "y = ConstantOfShape <value = int32[1] {7}> (k)", "int32", rank=2, constants={"k": i64(2, 3)}
    ),
    "constant of shape without value": constant("y = ConstantOfShape(k)", rank=2, constants={"k": i64(2, 0)}),
    "constant of shape of a scalar": constant(
        "y = ConstantOfShape <value = float[1] {7}> (k)", rank=0, constants={"k": i64()}
    ),
    "huge constant of shape": Trap(
        "g (float[1] x) => (float[1] y) { a = ConstantOfShape(k) b = Gather(a, l) c = Reshape(b, m)"
        " y = Add(x, c) }",
        {"k": i64(2**22), "l": i64(5), "m": i64(1)},
        left=("ConstantOfShape",),
    ),
    "shape with start and end": Trap(
        "g (float[N, 3, 4] x) => (int64[?] y) { y = Shape <start = -2, end = 2> (x) }"
    ),
    "shape beyond": Trap(
        "g (float[2, 3] x) => (int64[?] y) { y = Shape <start = -9, end = 9> (x) }"
    ),
    "shape of nothing": Trap("g (float[2, 3] x) => (int64[?] y) { y = Shape <start = 2> (x) }"),
    "size": Trap("g (float[N, 3] x) => (int64 y) { y = Size(x) }"),
    "size of static": Trap("g (float[2, 3] x) => (int64 y) { y = Size(x) }"),
    "shape of N and constant": Trap(
        "g (float[N, 3] x) => (float[?, ?] y) { s = Shape(x) n = Gather(s, a) u = Unsqueeze(n, b)"
        " t = Concat <axis = 0> (u, c) y = Reshape(x, t) }",
        {"a": np.int64(0), "b": i64(0), "c": i64(-1)},
    ),
    "shape times two": Trap(
        "g (float[N, 4] x) => (float[?, ?] y) { s = Shape(x) t = Mul(s, k) d = Div(t, l)"
        " y = Reshape(x, d) }",
        {"k": i64(2, 1), "l": i64(1, 2)},
    ),
}

