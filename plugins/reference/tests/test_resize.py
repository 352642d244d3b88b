"""Resize, against onnxruntime and the specification's formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from runtime_kit import as_onnxruntime, evaluate, floats

MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = list(itertools.product(range(1, 6), range(1, 6)))


def resized(shape, sizes, **attributes):
    inputs = [floats(*shape), None, None, np.array(sizes, np.int64)]
    return as_onnxruntime("Resize", inputs, 19, **attributes)


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_sizes(how, mode):
    for before, after in SIZES:
        sizes = [1, 1, after, 1 + (before + after) % 2 * 3]
        resized((1, 1, before, 3), sizes, mode=mode, coordinate_transformation_mode=how)


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_nearest(how, rounding):
    options = {"coordinate_transformation_mode": how, "nearest_mode": rounding}
    for before, after in SIZES:
        resized((1, 1, before, 3), [1, 1, after, 3], mode="nearest", **options)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_one_element_by_pytorch_half_pixel_is_the_first(mode):
    x = np.float32([1, 2, 3]).reshape(1, 1, 3, 1)
    options = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    sizes = np.array([1, 1, 1, 1], np.int64)
    (got,) = evaluate("Resize", [x, None, None, sizes], 19, **options)
    assert got.item() == 1.0
    scales = np.array([1, 1, 0.34, 1], np.float32)
    (got,) = evaluate("Resize", [x, None, scales], 19, **options)
    assert got.item() == 1.0


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_aspect_ratio_that_is_kept(policy, mode):
    inputs = [floats(1, 2, 4, 6), None, None, np.array([7, 8], np.int64)]
    options = {"keep_aspect_ratio_policy": policy, "axes": [2, 3], "mode": mode}
    as_onnxruntime("Resize", inputs, 18, **options)


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.5, 2.0])
def test_cubic_without_what_is_outside(scale):
    scales = np.array([1, 1, scale, scale], np.float32)
    options = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    as_onnxruntime("Resize", [floats(1, 1, 5, 5), None, scales], 18, **options)


def test_a_region_and_what_is_beyond_it():
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], np.float32)
    sizes = np.array([1, 1, 3, 3], np.int64)
    options = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 10.0,
    }
    as_onnxruntime("Resize", [floats(1, 1, 4, 4), roi, None, sizes], 18, **options)
