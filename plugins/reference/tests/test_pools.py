"""Pools, norms and pads that onnx's evaluator gets wrong, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runtime_kit import as_onnxruntime, evaluate, floats

SHAPES = [(2, 3, 7), (2, 3, 4, 5), (2, 3, 4, 5, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_global_max_pool(shape):
    as_onnxruntime("GlobalMaxPool", [floats(*shape)])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_global_lp_pool(shape, p):
    as_onnxruntime("GlobalLpPool", [floats(*shape)], p=p)


def test_global_lp_pool_without_p():
    as_onnxruntime("GlobalLpPool", [floats(2, 3, 4, 5)])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_lp_normalization(axis, p):
    x = floats(3, 4, 5)
    x[0, 0] = x[:, 1, 1] = 0
    given = {} if axis is None else {"axis": axis}
    as_onnxruntime("LpNormalization", [x], p=p, **given)


POOLS = {
    "pads": ((1, 2, 7, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1]}),
    "same lower": ((1, 2, 7, 6), {"kernel_shape": [4, 2], "auto_pad": "SAME_LOWER"}),
    "same upper": (
        (1, 2, 8, 9),
        {"kernel_shape": [4, 3], "strides": [2, 3], "auto_pad": "SAME_UPPER"},
    ),
    "same lower, strides": (
        (1, 2, 8, 9),
        {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    ),
    "valid": ((1, 2, 8, 9), {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": "VALID"}),
    "ceil": ((1, 2, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
    "ceil, pads": (
        (1, 2, 7, 7),
        {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    ),
    "dilations": ((1, 2, 9, 8), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    "lines": ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    "volumes": ((2, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 2, 1]}),
    "volumes, same lower": (
        (2, 2, 5, 6, 7),
        {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "auto_pad": "SAME_LOWER"},
    ),
    "columns first": ((2, 2, 5, 6), {"kernel_shape": [2, 3], "storage_order": 1}),
    "volumes, columns first": ((2, 2, 3, 4, 5), {"kernel_shape": [2, 2, 2], "storage_order": 1}),
}


@pytest.mark.parametrize("opset", [12, 22])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", POOLS)
def test_max_pool(name, outputs, opset):
    shape, attributes = POOLS[name]
    as_onnxruntime("MaxPool", [floats(*shape)], opset, outputs, **attributes)


@st.composite
def pools(draw):
    rank = draw(st.integers(1, 3))

    def each(low, high, count=rank):
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    sizes, kernel = each(1, 7), each(1, 3)
    attributes = {"kernel_shape": kernel, "strides": each(1, 3)}
    auto_pad = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    attributes["auto_pad"] = auto_pad
    dilations = [1] * rank
    if auto_pad == "NOTSET":
        dilations = attributes["dilations"] = each(1, 2)
        attributes["pads"] = [
            min(pad, size - 1) for pad, size in zip(each(0, 2, 2 * rank), kernel * 2, strict=True)
        ]
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    for size, count, dilation in zip(sizes, kernel, dilations, strict=True):
        assume((count - 1) * dilation < size)
    for size, count, stride in zip(sizes, kernel, attributes["strides"], strict=True):
        # onnxruntime takes no strides that leave elements out.
        assume(auto_pad[:4] != "SAME" or (-(-size // stride) - 1) * stride + count >= size)
    return sizes, attributes


@settings(deadline=None, max_examples=100)
@given(pools())
def test_max_pool_of_any_kernel_window(case):
    sizes, attributes = case
    as_onnxruntime("MaxPool", [floats(2, 2, *sizes)], 12, 2, **attributes)


@settings(deadline=None, max_examples=100)
@given(pools(), st.integers(1, 3))
def test_lp_pool_of_any_kernel_window(case, p):
    sizes, attributes = case
    as_onnxruntime("LpPool", [floats(2, 2, *sizes)], 18, p=p, **attributes)


def test_max_pool_that_leaves_elements_out():
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    (got,) = evaluate("MaxPool", [x], kernel_shape=[1], strides=[3], auto_pad="SAME_LOWER")
    assert got.ravel().tolist() == [0, 3, 6]


def test_max_pool_of_bytes():
    x = np.arange(-40, 40, dtype=np.int8).reshape(1, 2, 5, 8)
    as_onnxruntime("MaxPool", [x], 12, kernel_shape=[2, 2], pads=[1, 1, 1, 1])


def test_max_pool_of_infinities_and_nan():
    x = np.array([[[-np.inf, -np.inf, np.nan, 1, np.inf]]], np.float32)
    best, places = evaluate("MaxPool", [x], outputs=2, kernel_shape=[2])
    np.testing.assert_array_equal(best.ravel(), [-np.inf, np.nan, np.nan, np.inf])
    assert places.ravel().tolist() == [0, 2, 2, 4]


PADS = {
    "cut": ([0, -1, -2, 0, -1, 0], "constant"),
    "cut and add": ([0, -1, 2, 1, 2, -3], "constant"),
    "edge": ([0, -1, 2, 1, 2, -2], "edge"),
    "reflect": ([0, -1, 1, 0, 1, -1], "reflect"),
    "cut all": ([0, 0, -2, 0, 0, -3], "constant"),
}


@pytest.mark.parametrize("opset", [2, 11, 13, 18])
@pytest.mark.parametrize("name", PADS)
def test_negative_pads(name, opset):
    pads, mode = PADS[name]
    x = floats(2, 4, 5)
    if opset == 2:
        as_onnxruntime("Pad", [x], opset, pads=pads, mode=mode, value=1.5)
        return
    value = np.array(1.5, np.float32)
    as_onnxruntime("Pad", [x, np.array(pads), value], opset, mode=mode)


def test_negative_pads_of_some_axes():
    pads, axes = np.array([-1, 2, 1, -2]), np.array([2, -2])
    as_onnxruntime("Pad", [floats(2, 4, 5), pads, None, axes])
