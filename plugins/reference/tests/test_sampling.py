"""GridSample, RoiAlign and Upsample, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_kit import as_onnxruntime, evaluate, floats


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_before_opset_20(mode, padding, align):
    inputs = [floats(2, 3, 4, 5), floats(2, 6, 7, 2, seed=1) * np.float32(1.3)]
    options = {"mode": mode, "padding_mode": padding, "align_corners": align}
    as_onnxruntime("GridSample", inputs, 16, **options)
    options["mode"] = mode.removeprefix("bi")
    as_onnxruntime("GridSample", inputs, 20, **options)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode, padding):
    inputs = [floats(2, 3, 4, 5, 3), floats(2, 3, 4, 5, 3, seed=1)]
    as_onnxruntime("GridSample", inputs, 20, mode=mode, padding_mode=padding)


def test_grid_sample_as_it_is_by_default():
    inputs = [floats(2, 3, 4, 5), floats(2, 6, 7, 2, seed=1)]
    as_onnxruntime("GridSample", inputs, 16)
    as_onnxruntime("GridSample", inputs, 20)


def test_grid_sample_of_float16():
    x, grid = floats(1, 2, 4, 5).astype(np.float16), floats(1, 3, 3, 2).astype(np.float16)
    (got,) = evaluate("GridSample", [x, grid], 20)
    (expected,) = evaluate("GridSample", [x.astype(np.float32), grid.astype(np.float32)], 20)
    np.testing.assert_array_equal(got, expected.astype(np.float16), strict=True)


def test_an_empty_grid():
    (got,) = evaluate("GridSample", [floats(1, 2, 4, 5), floats(1, 0, 3, 2)], 20)
    assert got.shape == (1, 2, 0, 3)


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(opset, ratio):
    """Before operator set 16 coordinates are not moved by half a pixel, as from there on."""
    boxes = np.array([[0.6, 0.3, 4.2, 3.4], [1, 1, 3, 2]], np.float32)
    inputs = [floats(2, 3, 5, 6), boxes, np.array([1, 0])]
    options = {"output_height": 2, "output_width": 3, "sampling_ratio": ratio}
    as_onnxruntime("RoiAlign", inputs, opset, **options)


UPSAMPLES = [
    ("linear", (2, 3, 4, 5), [1, 1, 2, 2]),
    ("linear", (1, 1, 3, 4), [1, 1, 2.3, 1.5]),
    ("linear", (4, 5), [2, 3]),
    ("linear", (1, 1, 3, 4, 2), [1, 1, 2, 1.5, 3]),
    ("nearest", (2, 3, 4, 5), [1, 1, 2, 3]),
    ("nearest", (2, 3, 4, 5), [1, 1, 1.5, 2.3]),
    ("nearest", (3, 4), [2, 2]),
]


@pytest.mark.parametrize(("mode", "shape", "scales"), UPSAMPLES)
def test_upsample(mode, shape, scales):
    x = floats(*shape)
    as_onnxruntime("Upsample", [x], 7, mode=mode, scales=[float(scale) for scale in scales])
    as_onnxruntime("Upsample", [x, np.array(scales, np.float32)], 9, mode=mode)
