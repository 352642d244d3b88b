"""Elementwise kernels; oracle: numpy, exact where a result is rounded once, else in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from edge_kit import EDGES, FLAT, UNIT, Cases

from narrowpass_xnn_cpu.native import kernels

CASES = Cases()
INTEGERS = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]
NUMBERS = (*INTEGERS, "float32", "float64")


def numbers(kernel, dtype, *shape):
    """Return small whole numbers, of which many are equal, below 0 where the type has those."""
    least = -9 if np.dtype(dtype).kind in "if" else 0
    return kernel.rng.integers(least, 10, shape).astype(dtype)


@CASES.of("NP_ADD_CLAMP", count=FLAT, limits=((-np.inf, np.inf), (0, 6), (-0.5, np.inf)))
def add_clamp(kernel, count, limits):
    a, b = kernel.floats(count), kernel.floats(count)
    expected = np.clip(a + b, *np.float32(limits))
    kernel.expect(kernels.add_clamp(count, *limits), [a, b], expected)


def logistic(x):
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "exp": np.exp,
    "erf": None,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tan": np.tan,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "gelu": lambda x: x * np.vectorize(math.erfc, [float])(-x / math.sqrt(2)) / 2,
    "tanh gelu": lambda x: x * logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
del FUNCTIONS["erf"]  # numpy has none: test_math_functions.py has it


@CASES.of("NP_FUNCTION", count=FLAT, name=tuple(FUNCTIONS))
def function(kernel, count, name):
    """A few units: the approximations' own errors are those of test_math_functions.py."""
    x = np.clip(kernel.floats(count), -1.5, 1.5)
    x = np.abs(x) + np.float32(0.125) if name == "rsqrt" else x
    expected = FUNCTIONS[name](x.astype(np.float64)).astype(np.float32)
    kernel.expect(kernels.function(count, name), [x], expected, 8 * UNIT)


@CASES.of(
    "NP_GATE", rows=(0, 1, 3, 16, 17), columns=EDGES, gap=(0, 1, 5), kind=("silu", "gelu", "both")
)
def gate(kernel, rows, columns, gap, kind):
    """Rows of a wider matrix, as a projection of both operands has them."""
    wide = kernel.floats(rows, 2 * columns + gap)
    slope, cubic = (1.5957691, 0.0713548) if kind != "silu" else (1.0, 0.0)
    has_factor = kind != "gelu"
    stride = wide.shape[1]
    factor = (columns + gap, stride) if has_factor else None
    params = kernels.gate(rows, columns, (gap, stride), factor, slope, cubic)
    x = wide[:, gap : gap + columns].astype(np.float64)
    expected = x * logistic(slope * x + cubic * x**3)
    if has_factor:
        expected *= wide[:, columns + gap :]
    kernel.expect(params, [wide, wide], expected.astype(np.float32), 12 * UNIT)


@CASES.of("NP_SOFTMAX_PAIRS", count=FLAT)
def softmax_pairs(kernel, count):
    x = kernel.floats(count, 2)
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(1, keepdims=True)
    kernel.expect(kernels.softmax_pairs(count), [x], expected.astype(np.float32), 8 * UNIT)


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "equal": np.equal,
    "less": np.less,
    "less or equal": np.less_equal,
}
SHAPES = {
    "dense": lambda m, n: ((m, n), (m, n)),
    "scalar": lambda m, n: ((m, n), (1, 1)),
    "row": lambda m, n: ((1, n), (m, n)),
    "column": lambda m, n: ((m, n), (m, 1)),
    "both": lambda m, n: ((m, 1), (1, n)),
}


@CASES.of(
    "NP_TYPED_BINARY",
    columns=(*EDGES, 4095, 4097, 16385),
    rows=(0, 1, 2, 3, 17),
    name=tuple(BINARY),
    dtype=NUMBERS,
    how=tuple(SHAPES),
)
def typed_binary(kernel, columns, rows, name, dtype, how):
    a, b = (numbers(kernel, dtype, *shape) for shape in SHAPES[how](rows, columns))
    expected = BINARY[name](a, b)
    strides = [kernels.broadcast_strides(x.shape, expected.shape) for x in (a, b)]
    params = kernels.typed_binary(expected.shape, strides, name, dtype)
    kernel.expect(params, [a, b], expected)


UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "not": np.logical_not,
    "invert": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
}


@CASES.of("NP_TYPED_UNARY", count=FLAT, name=tuple(UNARY), dtype=NUMBERS)
def typed_unary(kernel, count, name, dtype):
    if name == "invert" and dtype.startswith("float"):
        return
    if name.startswith("is") and not dtype.startswith("float"):
        return
    x = numbers(kernel, dtype, count)
    if dtype.startswith("float"):
        x[x == 5], x[x == -5], x[x == 6] = np.inf, -np.inf, np.nan
    kernel.expect(kernels.typed_unary(count, name, dtype), [x], UNARY[name](x))


@CASES.of("NP_CAST", count=FLAT, source=("bool", *NUMBERS), target=("bool", *NUMBERS))
def cast(kernel, count, source, target):
    signed = {source, target} <= {"int8", "int16", "int32", "int64", "float32", "float64"}
    x = kernel.rng.integers(-100 if signed else 0, 100, count).astype(source)
    if source.startswith("float"):
        x = x * x.dtype.type(0.73)
    kernel.expect(kernels.cast(count, source, target), [x], x.astype(target))


NARROW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


@CASES.of("NP_CONVERT", count=FLAT, narrow=("float16", "bfloat16"), how=("to", "from", "round"))
def convert(kernel, count, narrow, how):
    x = 100 * kernel.floats(count)
    small = x.astype(NARROW[narrow])
    if how == "to":
        params = kernels.convert(count, "float32", narrow)
        kernel.expect(params, [x.view(np.uint32)], small.view(np.uint16))
    elif how == "from":
        params = kernels.convert(count, narrow, "float32")
        kernel.expect(params, [small.view(np.uint16)], small.astype(np.float32))
    else:
        kernel.expect(kernels.round_to(count, narrow), [x], small.astype(np.float32))
