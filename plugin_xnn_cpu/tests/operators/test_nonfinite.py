"""NaN, infinities, huge and subnormal numbers, in pools, reductions, roots and attention."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper
from xnn_kit import check, compile_model, one_node

RNG = np.random.default_rng(4)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 3e38)
PLACES = ((0, 0, 0, 0), (0, 1, 3, 1), (1, 2, 7, 5), (0, 17, 4, 4), (1, 0, 0, 5))


def image(special, place, channels=18):
    x = RNG.standard_normal((2, channels, 8, 6)).astype(np.float32)
    x[place] = special
    return x


POOLS = [
    {"kernel_shape": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    {"kernel_shape": [1, 1]},
]


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("attributes", POOLS)
def test_averages(attributes, special):
    model = one_node("AveragePool", [(2, 18, 8, 6)], **attributes)
    program = compile_model(model)
    for place in PLACES:
        check(model, {"x0": image(special, place)}, program=program, oracle="onnxruntime")


@pytest.mark.parametrize("channels", [1, 3, 16, 18, 64, 130])
@pytest.mark.parametrize("attributes", [*POOLS, {"kernel_shape": [2, 2], "dilations": [2, 3]}])
def test_maxima(attributes, channels):
    """NaN is the greatest number, as numpy's maximum has it; onnxruntime loses it in places."""
    model = one_node("MaxPool", [(2, channels, 8, 6)], **attributes)
    program = compile_model(model)
    for special in SPECIAL:
        x = image(special, (1, channels - 1, 4, 3), channels)
        (got,) = program.run({"x0": x}).values()
        np.testing.assert_array_equal(got, max_pool(x, **attributes))
    check(model, {"x0": image(1.0, PLACES[0], channels)}, program=program, oracle="onnxruntime")


def max_pool(x, kernel_shape, strides=None, pads=None, dilations=None, ceil_mode=0):
    """Pool images [N, C, H, W] or lines [N, C, W] by the definition, one output pixel at a time."""
    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    pads = pads or [0] * 2 * axes
    sizes = []
    for axis in range(axes):
        room = x.shape[2 + axis] + pads[axis] + pads[axes + axis]
        room -= dilations[axis] * (kernel_shape[axis] - 1) + 1
        sizes.append((-(-room // strides[axis]) if ceil_mode else room // strides[axis]) + 1)
    y = np.empty((*x.shape[:2], *sizes), x.dtype)
    for place in np.ndindex(*sizes):
        taps = []
        for axis, at in enumerate(place):
            start = at * strides[axis] - pads[axis]
            some = start + dilations[axis] * np.arange(kernel_shape[axis])
            taps.append(some[(some >= 0) & (some < x.shape[2 + axis])])
        patch = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *taps)]
        y[(slice(None), slice(None), *place)] = patch.max(axis=tuple(range(2, 2 + axes)))
    return y


def test_maxima_of_lines():
    model = one_node("MaxPool", [(2, 5, 11)], kernel_shape=[3], strides=[2], pads=[1, 1])
    x = RNG.standard_normal((2, 5, 11)).astype(np.float32)
    x[1, 2, 5] = np.nan
    (got,) = compile_model(model).run({"x0": x}).values()
    np.testing.assert_array_equal(got, max_pool(x, [3], [2], [1, 1]))


AXES = [axes for count in range(1, 5) for axes in itertools.combinations(range(4), count)]


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_maxima_and_minima_propagate_nan(kind, axes):
    function = np.max if kind == "ReduceMax" else np.min
    model = one_node(kind, [(2, 18, 8, 6), np.array(axes, np.int64)])
    program = compile_model(model)
    for special, place in itertools.product(SPECIAL, PLACES):
        x = image(special, place)
        got = program.run({"x0": x})["y0"]
        np.testing.assert_array_equal(got, function(x, axis=axes, keepdims=True))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 300, 1, 1), (3, 1, 1, 700), (1, 2, 129, 1)])
def test_extremes_of_axes_of_one(shape):
    model = one_node("ReduceMax", [shape, np.array([1, 3], np.int64)], keepdims=0)
    x = RNG.standard_normal(shape).astype(np.float32)
    got = compile_model(model).run({"x0": x})["y0"]
    np.testing.assert_array_equal(got, x.max(axis=(1, 3)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 700, 40, 30), (60, 8, 30, 40)])
def test_greatest_of_large_images(shape, threads):
    model = one_node("GlobalMaxPool", [shape])
    x = RNG.standard_normal(shape).astype(np.float32)
    x[0, 3, 7, 11] = np.nan
    got = compile_model(model, threads=threads).run({"x0": x})["y0"]
    np.testing.assert_array_equal(got, x.max(axis=(2, 3), keepdims=True))


def test_extremes_in_another_layout():
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("ReduceMin", ["p"], ["y"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 18, 8, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = image(np.nan, PLACES[1])
    program = check(model, {"x": image(1.0, PLACES[1])})
    (got,) = program.run({"x": x}).values()
    np.testing.assert_array_equal(got, max_pool(x, [2, 2]).min(axis=1))


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_as_powers(exponent):
    x = np.float32([-np.inf, np.inf, -0.0, 0.0, 4.0, -1.0, np.nan, 1e-41, 3e38])
    model = one_node("Pow", [(9,), np.array(exponent, np.float32)])
    got = compile_model(model).run({"x0": x})["y0"]
    with np.errstate(all="ignore"):
        # The power of a double is libm's own, and not a root.
        expected = np.power(x.astype(np.float64), np.full(9, exponent)).astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_functions_of_subnormal_numbers():
    x = np.float32([1e-41, -1e-41, 1e-45, 1.17e-38, 0.0, -0.0, 1.2e-38, 2.0])
    with np.errstate(all="ignore"):
        for kind, function in (("Log", np.log), ("Sqrt", np.sqrt), ("Exp", np.exp)):
            got = compile_model(one_node(kind, [(8,)])).run({"x0": x})["y0"]
            expected = function(x.astype(np.float64)).astype(np.float32)
            np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(("rows", "keys"), [(1, 7), (2, 40), (24, 40), (70, 130)])
@pytest.mark.parametrize("operand", [0, 1])
def test_attention_with_a_huge_operand(rows, keys, operand):
    """Scores that are infinite before they are scaled, and finite after."""
    names = ("q", "k", "v")
    shapes = [[1, 2, rows, 64], [1, 2, keys, 64], [1, 2, keys, 16]]
    graph = helper.make_graph(
        [helper.make_node("Attention", names, ["y"])],
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in zip(names, shapes, strict=True)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    feeds = {n: RNG.standard_normal(s) for n, s in zip(names, shapes, strict=True)}
    huge, other = feeds[names[operand]], feeds[names[1 - operand]]
    huge[0, 1, 0, 3] = 3e38
    other[0, 1, :, 3] = RNG.uniform(1.5, 4, other.shape[2])
    feeds = {n: x.astype(np.float32) for n, x in feeds.items()}
    q, k, v = (feeds[n].astype(np.float64) for n in names)
    scores = q @ k.swapaxes(2, 3) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    got = compile_model(model).run(feeds)["y"]
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16], ids=lambda d: d.__name__
)
def test_quantizing_nonfinite_numbers(dtype):
    x = np.float32([np.inf, -np.inf, np.nan, 1e30, -1e30, 1.25, -3, 3e38])
    model = one_node("QuantizeLinear", [(8,), np.array(0.1, np.float32), np.array(3, dtype)], 21)
    check(model, {"x0": x}, native=None, oracle="onnxruntime")
    check(model, {"x0": x}, native=None)
