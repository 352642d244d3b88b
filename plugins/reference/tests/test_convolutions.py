"""Conv and ConvTranspose, against onnxruntime."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runtime_kit import as_onnxruntime, evaluate, floats


@st.composite
def convolutions(draw, *, transposed):
    rank = draw(st.integers(1, 3))

    def each(low, high, count=rank):
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    group, (inner, outer) = draw(st.integers(1, 3)), each(1, 3, 2)
    sizes, kernel, strides = each(1, 7), each(1, 3), each(1, 3)
    attributes = {"group": group, "strides": strides, "kernel_shape": kernel}
    modes = ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
    auto_pad = attributes["auto_pad"] = draw(st.sampled_from(modes))
    dilations = [1] * rank
    if auto_pad in ("NOTSET", "VALID"):
        dilations = attributes["dilations"] = each(1, 3)
    pads = [0] * 2 * rank
    if auto_pad == "NOTSET":
        pads = attributes["pads"] = each(0, 2, 2 * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if transposed:
        if auto_pad in ("NOTSET", "VALID"):
            more = [min(e, s - 1) for e, s in zip(each(0, 2), strides, strict=True)]
            attributes["output_padding"] = more
        for axis, size in enumerate(sizes):
            full = (size - 1) * strides[axis] + extents[axis]
            assume(full > pads[axis] + pads[rank + axis])
            # onnxruntime takes no negative pads; those are cut off here.
            assume(auto_pad[:4] != "SAME" or full >= size * strides[axis])
        shape = (group * inner, outer, *kernel)
    else:
        for axis, size in enumerate(sizes):
            room = size + pads[axis] + pads[rank + axis]
            assume(auto_pad[:4] == "SAME" or room >= extents[axis])
        shape = (group * outer, inner, *kernel)
    inputs = [floats(2, group * inner, *sizes), floats(*shape, seed=1)]
    if draw(st.booleans()):
        inputs.append(floats(group * outer, seed=2))
    return inputs, attributes


@settings(deadline=None, max_examples=150)
@given(convolutions(transposed=False))
def test_conv(case):
    inputs, attributes = case
    as_onnxruntime("Conv", inputs, 11, **attributes)


@settings(deadline=None, max_examples=150)
@given(convolutions(transposed=True))
def test_conv_transpose(case):
    inputs, attributes = case
    as_onnxruntime("ConvTranspose", inputs, 11, **attributes)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_with_the_shape_of_its_output(auto_pad):
    inputs = [floats(1, 4, 5, 6), floats(4, 3, 3, 4, seed=1)]
    for shape in ([10, 11], [9, 12], [10, 13]):
        options = {"strides": [2, 2], "output_shape": shape, "group": 2}
        as_onnxruntime("ConvTranspose", inputs, 11, auto_pad=auto_pad, **options)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_have_accumulators_in_float32(op_type, dtype):
    """They are rounded to the type before the bias is added, and after."""
    inputs = [floats(2, 6, 9).astype(dtype), floats(6, 3, 4, seed=1).astype(dtype)]
    options = {"group": 2 if op_type == "Conv" else 1, "dilations": [2]}
    bias = floats(6 if op_type == "Conv" else 3, seed=2).astype(dtype)
    (got,) = evaluate(op_type, [*inputs, bias], 22, **options)
    (wide,) = evaluate(op_type, [value.astype(np.float32) for value in inputs], 22, **options)
    np.testing.assert_array_equal(got, wide.astype(dtype) + bias[:, None], strict=True)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_doubles_have_accumulators_in_float64(op_type):
    x, w = (floats(1, 4, 8, seed=seed).astype(np.float64) for seed in (0, 1))
    w = w[:, :, :5].repeat(4, axis=0)
    (got,) = evaluate(op_type, [x, w], 11)
    expected = np.zeros_like(got)
    for tap in range(5):
        if op_type == "Conv":
            expected += np.einsum("mc,bcn->bmn", w[:, :, tap], x[:, :, tap : tap + 4])
        else:
            expected[..., tap : tap + 8] += np.einsum("cm,bcn->bmn", w[:, :, tap], x)
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13, strict=True)


def test_an_empty_batch():
    for op_type in ("Conv", "ConvTranspose"):
        (got,) = evaluate(op_type, [floats(0, 2, 5), floats(2, 2, 3)], 11)
        assert got.shape == (0, 2, 3 if op_type == "Conv" else 7)


def test_a_dilated_kernel_needs_no_memory_of_its_extent():
    """4000 samples, dilation 512: onnx's needs 3.2 GB."""
    inputs = [floats(1, 8, 4000), floats(8, 8, 3, seed=1)]
    attributes = {"dilations": [512], "pads": [1024, 0]}
    tracemalloc.start()
    try:
        evaluate("Conv", inputs, 11, **attributes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * inputs[0].nbytes
    as_onnxruntime("Conv", inputs, 11, **attributes)


def test_shapes_that_do_not_fit_are_reported():
    with pytest.raises(Exception, match=r"W \[4, 3, 3\] does not fit X \[1, 4, 9\], group 1"):
        evaluate("Conv", [floats(1, 4, 9), floats(4, 3, 3)], 11)
