"""Functions of a float: their error in units in the last place, and NaN, infinities and subnormals.

The oracle is numpy in double, or the C library's erf in double; onnxruntime for what is not finite.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from xnn_kit import check, compile_model, one_node

ERF = np.vectorize(math.erf, otypes=[np.float64])


def log1p_exp(x):
    return np.logaddexp(x, 0.0)


def expm1_below(x, alpha):
    return np.where(x > 0, x, alpha * np.expm1(x / alpha))


FUNCTIONS = {
    # name: attributes, the function in double, arguments, error in units in the last place
    "Erf": ({}, ERF, (-6, 6), 1.5),
    "Softplus": ({}, log1p_exp, (-80, 90), 4),
    "Softsign": ({}, lambda x: x / (1 + np.abs(x)), (-1e3, 1e3), 1.5),
    "Selu": (
        {"alpha": 1.5, "gamma": 2.0},
        lambda x: 2.0 * np.where(x > 0, x, 1.5 * np.expm1(x)),
        (-50, 50),
        3,
    ),
    "Celu": ({"alpha": 2.0}, lambda x: expm1_below(x, 2.0), (-50, 50), 3),
    "Mish": ({}, lambda x: x * np.tanh(log1p_exp(x)), (-80, 80), 6),
    "Swish": ({"alpha": 0.5}, lambda x: x / (1 + np.exp(-0.5 * x)), (-80, 80), 6),
    "Elu": ({"alpha": 1.5}, lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), (-50, 50), 3),
    "Sin": ({}, np.sin, (-1e4, 1e4), 0.51),
    "Cos": ({}, np.cos, (-1e4, 1e4), 0.51),
    "Tan": ({}, np.tan, (-1e4, 1e4), 0.51),
    "Asin": ({}, np.arcsin, (-1, 1), 0.51),
    "Acos": ({}, np.arccos, (-1, 1), 0.51),
    "Atan": ({}, np.arctan, (-1e3, 1e3), 0.51),
    "Sinh": ({}, np.sinh, (-88, 88), 0.51),
    "Cosh": ({}, np.cosh, (-88, 88), 0.51),
    "Asinh": ({}, np.arcsinh, (-1e6, 1e6), 0.51),
    "Acosh": ({}, np.arccosh, (1, 1e6), 0.51),
    "Atanh": ({}, np.arctanh, (-1, 1), 0.51),
    "Tanh": ({}, np.tanh, (-12, 12), 6),
}

OPSETS = {"Mish": 18, "Swish": 24}

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 0.5, -0.5],
    np.float32,
)
SPECIAL = np.concatenate([SPECIAL, np.float32([1e-3, -1e-3, 20, -20, 88.8, -88.8, 104, -104])])


def arguments(low, high):
    """Return numbers of all sizes between bounds, and some evenly spread."""
    rng = np.random.default_rng(1)
    even = rng.uniform(low, high, 60_000)
    exponents = rng.uniform(-30, math.log2(max(abs(low), abs(high))), 60_000)
    tiny = np.exp2(exponents) * rng.choice([-1.0, 1.0], 60_000)
    x = np.float32(np.concatenate([even, tiny]))
    return x[(x >= low) & (x <= high)]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_error_is_as_stated(kind):
    attributes, function, (low, high), most = FUNCTIONS[kind]
    x = arguments(low, high)
    model = one_node(kind, [["n"]], opset=OPSETS.get(kind, 17), **attributes)
    (got,) = compile_model(model).run({"x0": x}).values()
    with np.errstate(all="ignore"):
        exact = function(np.float64(x))
    normal = (np.abs(exact) > 1.2e-38) & (np.abs(exact) < 3.4e38)
    unit = np.spacing(np.abs(exact[normal]).astype(np.float32)).astype(np.float64)
    error = np.abs(got[normal].astype(np.float64) - exact[normal]) / unit
    assert error.max() <= most, x[normal][error.argmax()]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_error_of_gelu_is_a_part_of_its_argument(approximate):
    x = arguments(-20, 20)
    model = one_node("Gelu", [["n"]], opset=20, approximate=approximate)
    (got,) = compile_model(model).run({"x0": x}).values()
    wide = np.float64(x)
    gate = ERF(wide / math.sqrt(2))
    if approximate == "tanh":
        gate = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    error = np.abs(got - wide * (1 + gate) / 2)
    assert (error <= 2.5e-7 * np.abs(wide)).all(), x[(error / np.abs(wide)).argmax()]


@pytest.mark.parametrize("kind", [kind for kind in FUNCTIONS if kind not in OPSETS])
def test_nonfinite_numbers_agree_with_onnxruntime(kind):
    model = one_node(kind, [["n"]], opset=17, **FUNCTIONS[kind][0])
    x = SPECIAL
    if kind == "Selu":  # onnxruntime computes exp(x) - 1: it loses what is small
        x = x[(np.abs(x) > 1e-2) | ~np.isfinite(x)]
    check(model, {"x0": x}, oracle="onnxruntime", tolerance=1e-6)


@pytest.mark.parametrize("kind", ["ThresholdedRelu", "Shrink", "HardSigmoid"])
def test_pieces_of_lines_are_those_of_onnxruntime(kind):
    model = one_node(kind, [["n"]], opset=17)
    x = np.concatenate([SPECIAL, np.float32(np.linspace(-4, 4, 801))])
    check(model, {"x0": x}, oracle="onnxruntime", tolerance=1e-6)


@pytest.mark.parametrize("count", [0, 1, 7, 17, 4097, 70_001])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_elements(count, threads):
    model = one_node("Erf", [["n"]], opset=17)
    x = np.linspace(-3, 3, count, dtype=np.float32)
    (got,) = compile_model(model, threads=threads).run({"x0": x}).values()
    np.testing.assert_allclose(got, ERF(np.float64(x)), rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(dtype):
    import ml_dtypes
    from onnx import TensorProto, helper

    narrow = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    code = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.BFLOAT16
    graph = helper.make_graph(
        [helper.make_node("Softplus", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", code, ["n"])],
        [helper.make_tensor_value_info("y", code, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    x = np.linspace(-9, 9, 301).astype(narrow)
    (got,) = compile_model(model).run({"x": x}).values()
    exact = log1p_exp(x.astype(np.float64)).astype(np.float32).astype(narrow)
    differ = got.astype(np.float32) != exact.astype(np.float32)
    assert got.dtype == narrow
    # The float32 between is off by a unit at most: it seldom lies on the other side of a half.
    assert differ.sum() <= 2
