"""Numbers that are not finite, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_kit import as_onnxruntime, evaluate, floats

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("opset", [13, 19, 21])
def test_quantizing(dtype, opset):
    if opset < 21 and np.dtype(dtype).itemsize > 1:
        pytest.skip("integers of 16 bits came with operator set 21")
    x = np.float32([np.inf, -np.inf, np.nan, 1e30, -1e30, 1.25, -3, 3e38])
    zero = np.array(3, dtype)
    as_onnxruntime("QuantizeLinear", [x, np.array(0.1, np.float32), zero], opset)


def test_quantizing_channels_and_blocks():
    x = floats(2, 3, 4)
    x[1, 2, 3] = np.inf
    scale = np.float32([0.1, 0.2, 0.3])
    as_onnxruntime("QuantizeLinear", [x, scale, np.int8([1, 2, 3])], 21, axis=1)
    scale = np.abs(floats(2, 3, 2)) + np.float32(0.1)
    as_onnxruntime(
        "QuantizeLinear", [x, scale, np.zeros((2, 3, 2), np.int8)], 21, axis=2, block_size=2
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]},
        {
            "kernel_shape": [3, 3],
            "strides": [2, 2],
            "auto_pad": "SAME_LOWER",
            "count_include_pad": 1,
        },
    ],
)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_averages(options, special):
    x = floats(2, 3, 7, 6)
    x[0, 1, 3, 2] = special
    as_onnxruntime("AveragePool", [x], 19, **options)


def test_an_average_with_nan():
    x = np.float32([1, np.nan, 1, 1]).reshape(1, 1, 2, 2)
    (got,) = evaluate("AveragePool", [x], 18, kernel_shape=[2, 2])
    assert np.isnan(got).all()
