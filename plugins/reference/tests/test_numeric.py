"""Operators of which onnx's evaluator takes fewer shapes or types, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_kit import as_onnxruntime, evaluate, floats

HALF = np.float16


@pytest.mark.parametrize("dtype", [np.float32, HALF])
@pytest.mark.parametrize(
    "shapes", [[(1, 3), (2, 1)], [(3,), (2, 1, 3), (1, 2, 1)], [(2, 2), ()], [(4,)]], ids=str
)
def test_mean_of_operands_that_broadcast(shapes, dtype):
    operands = [floats(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
    if dtype == np.float32:
        as_onnxruntime("Mean", operands)
    (got,) = evaluate("Mean", operands)
    assert got.dtype == dtype
    wide = np.broadcast_arrays(*(operand.astype(np.float64) for operand in operands))
    np.testing.assert_allclose(got, np.mean(wide, axis=0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("opset", [13, 18])
def test_scalars(opset):
    as_onnxruntime("Softsign", [floats()], opset=opset)
    as_onnxruntime("ReduceLogSumExp", [floats()], opset=opset)
    as_onnxruntime("ReduceLogSumExp", [floats()], opset=opset, keepdims=0)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1, -1], [], None], ids=str)
def test_reduce_log_sum_exp(axes, keepdims):
    x = floats(2, 3, 4) * 40
    given = [x] if axes is None else [x, np.array(axes, np.int64)]
    as_onnxruntime("ReduceLogSumExp", given, keepdims=keepdims)
    as_onnxruntime("ReduceLogSumExp", given, keepdims=keepdims, noop_with_empty_axes=1)


def test_reduce_log_sum_exp_of_half_precision():
    x = floats(2, 3, 4).astype(HALF)
    (got,) = evaluate("ReduceLogSumExp", [x, np.array([1], np.int64)], keepdims=0)
    assert got.dtype == HALF
    expected = np.log(np.exp(x.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_of_fewer_places_than_the_data_has(axis):
    x = floats(3, 70, 4)  # more along an axis than numpy chooses among
    indices = np.random.default_rng(3).integers(-3, 3, (2, 3, 1))
    as_onnxruntime("GatherElements", [x, indices], axis=axis)
    as_onnxruntime("GatherElements", [x, indices.astype(np.int32)], axis=axis)
    as_onnxruntime("GatherElements", [x.astype(HALF), indices], axis=axis)


@pytest.mark.parametrize("batch_dims", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd(batch_dims, depth):
    x = floats(3, 4, 5, 6)
    rng = np.random.default_rng(4)
    indices = rng.integers(-3, 3, (*x.shape[:batch_dims], 2, depth))
    as_onnxruntime("GatherND", [x, indices], batch_dims=batch_dims)
    as_onnxruntime("GatherND", [x.astype(HALF), indices[..., 0, :]], batch_dims=batch_dims)


def test_gather_nd_of_one_element():
    as_onnxruntime("GatherND", [floats(8, 3), np.array([7, -1])])


def test_gather_nd_of_no_batches():
    data, indices = np.zeros((0, 4, 5), np.float32), np.zeros((0, 3, 1), np.int64)
    (got,) = evaluate("GatherND", [data, indices], batch_dims=1)
    assert got.shape == (0, 3, 5)


@pytest.mark.parametrize("dtype", [np.float32, HALF])
@pytest.mark.parametrize("axes", [None, [1], [0, 2]], ids=str)
def test_mean_variance_normalization(axes, dtype):
    x = (floats(2, 3, 4, 5) + 3).astype(dtype)
    given = {} if axes is None else {"axes": axes}
    if dtype == np.float32:
        as_onnxruntime("MeanVarianceNormalization", [x], **given)
    (got,) = evaluate("MeanVarianceNormalization", [x], **given)
    along = (0, 2, 3) if axes is None else tuple(axes)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(along, keepdims=True)) / wide.std(along, keepdims=True)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_average_pool_that_pads_by_itself(auto_pad, ceil_mode, count_include_pad):
    given = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "strides": [2, 2]}
    given |= {"kernel_shape": [3, 2], "count_include_pad": count_include_pad}
    as_onnxruntime("AveragePool", [floats(1, 2, 9, 8)], opset=19, **given)


def test_average_pool_of_a_kernel_smaller_than_its_stride():
    x = floats(1, 1, 5)
    (got,) = evaluate("AveragePool", [x], kernel_shape=[1], strides=[3], auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(got, x[:, :, ::3])


def test_convolution_of_no_channels():
    x, w = np.zeros((2, 0, 5), np.float32), np.zeros((3, 0, 2), np.float32)
    (got,) = evaluate("Conv", [x, w, np.float32([1, 2, 3])])
    expected = np.broadcast_to(np.float32([1, 2, 3])[None, :, None], (2, 3, 4))
    np.testing.assert_array_equal(got, expected)


def test_group_normalization_of_the_deprecated_form():
    x, scale, bias = floats(2, 6, 3, 2), floats(3, seed=1), floats(3, seed=2)
    as_onnxruntime("GroupNormalization", [x, scale, bias], opset=18, num_groups=3)
    as_onnxruntime("GroupNormalization", [x, scale, bias], opset=20, num_groups=3, epsilon=0.1)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_whose_output_is_larger_than_the_full_one(auto_pad):
    x, w = floats(1, 2, 3, 4), floats(2, 1, 1, 2)
    # The full result is 7 x 5; what is beyond it holds zeros, behind it.
    given = {"output_shape": [9, 8], "strides": [3, 1]}
    (got,) = evaluate("ConvTranspose", [x, w], auto_pad=auto_pad, **given)
    (full,) = evaluate("ConvTranspose", [x, w], strides=[3, 1])
    np.testing.assert_allclose(got[:, :, :7, :5], full, rtol=1e-6)
    assert not got[:, :, 7:].any()
    assert not got[:, :, :, 5:].any()


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_log_softmax_of_numbers_far_apart(opset):
    x = floats(4, 32) * 100
    for axis in (0, 1, -1):
        (got,) = as_onnxruntime("LogSoftmax", [x], opset=opset, axis=axis)
        assert np.isfinite(got).all()
    as_onnxruntime("LogSoftmax", [x], opset=opset)


@pytest.mark.parametrize("opset", [11, 12, 13])
@pytest.mark.parametrize("axes", [[1, -2], [-1, 0], [2, 0], [0, 2, 1]], ids=str)
def test_axes_in_any_order(axes, opset):
    listed = np.array(axes, np.int64)
    for x in (floats(), floats(3, 4)):
        if max(axes) >= x.ndim + len(axes):
            continue
        given = {} if opset >= 13 else {"axes": axes}
        (wide,) = as_onnxruntime(
            "Unsqueeze", [x, listed][: 1 + (opset >= 13)], opset=opset, **given
        )
        assert wide.shape == np.expand_dims(x, tuple(axes)).shape
        as_onnxruntime("Squeeze", [wide, listed][: 1 + (opset >= 13)], opset=opset, **given)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("opset", [13, 18])
def test_logarithms_of_integers(opset, op_type, dtype):
    x = np.arange(1, 25).reshape(2, 3, 4).astype(dtype)
    as_onnxruntime(op_type, [x], opset=opset)
    if opset >= 18:
        for noop in (0, 1):
            given = {"keepdims": 0, "noop_with_empty_axes": noop}
            as_onnxruntime(op_type, [x, np.array([2, 0], np.int64)], opset=opset, **given)
            as_onnxruntime(op_type, [x, np.array([], np.int64)], opset=opset, **given)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("opset", [11, 18, 19, 22])
@pytest.mark.parametrize("sizes", [(7,), (7, 10), (5, 6, 4)], ids=str)
def test_average_pool(sizes, opset, ceil_mode, count_include_pad):
    rank = len(sizes)
    given = {"kernel_shape": [3, 2, 3][:rank], "ceil_mode": ceil_mode}
    given["count_include_pad"] = count_include_pad
    x = floats(2, 3, *sizes)
    as_onnxruntime("AveragePool", [x], opset=opset, **given)
    as_onnxruntime("AveragePool", [x], opset=opset, strides=[2, 3, 2][:rank], **given)
    pads = [1, 0, 1][:rank] + [1, 1, 0][:rank]
    if opset >= 19:  # onnxruntime's older kernel counts what lies beyond the padding
        as_onnxruntime("AveragePool", [x], opset=opset, pads=pads, strides=[2] * rank, **given)
        dilated = {"dilations": [2, 1, 1][:rank], **given}
        as_onnxruntime("AveragePool", [x], opset=opset, pads=pads, **dilated)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_limits_of_non_max_suppression(given, shape):
    rng = np.random.default_rng(5)
    boxes = np.sort(rng.random((2, 9, 4), np.float32), axis=-1)[..., [0, 1, 2, 3]]
    scores = rng.random((2, 3, 9), np.float32)
    limits = [np.full(shape, 4, np.int64), np.full(shape, 0.4, np.float32)]
    limits.append(np.full(shape, 0.3, np.float32))
    for opset in (10, 11):
        as_onnxruntime("NonMaxSuppression", [boxes, scores, *limits[:given]], opset=opset)
    if given == 3:
        nothing = [*limits[:2], np.full(shape, 2, np.float32)]
        as_onnxruntime("NonMaxSuppression", [boxes, scores, *nothing], opset=11)
        without = [limits[0], None, limits[2]]
        as_onnxruntime("NonMaxSuppression", [boxes, scores, *without], opset=11)


FAR = 1 << 40


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2])
def test_slices_that_begin_or_end_beyond_the_axis(step, dtype):
    x = floats(4, 1)
    far = min(FAR, np.iinfo(dtype).max - 1)
    for start in (-far, -6, -5, -4, -1, 0, 3, 4, 5, far):
        for end in (-far, -6, -5, -4, -1, 0, 3, 4, 5, far):
            given = [np.array([n], dtype) for n in (start, end, 0, step)]
            as_onnxruntime("Slice", [x, *given])


def test_slices_of_several_axes():
    x = floats(3, 4, 5)
    starts, ends, axes, steps = ([2, 1], [-9, 4], [-1, 0], [-1, 2])
    given = [np.array(each, np.int64) for each in (starts, ends, axes, steps)]
    as_onnxruntime("Slice", [x, *given])
    as_onnxruntime("Slice", [x, *given[:3]])
    as_onnxruntime("Slice", [x, *given[:2]])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, HALF, np.int64])
def test_one_hot_returns_the_values_themselves(axis, dtype):
    """Off plus the difference of both is another number in narrow types."""
    values = np.array([-1.0732421875, 1.171875]) * (1000 if dtype == np.int64 else 1)
    indices = np.array([[3, 3, -2], [-5, 4, 7]])
    operands = [indices, np.array(5), values.astype(dtype)]
    (got,) = evaluate("OneHot", operands, axis=axis)
    assert got.dtype == dtype
    assert set(got.ravel().tolist()) == set(values.astype(dtype).tolist())
    if dtype != HALF:  # onnxruntime has no kernel for it
        as_onnxruntime("OneHot", operands, axis=axis)
