"""Single nodes at the limits of the kernels, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from oracle_kit import expected_outputs
from xnn_kit import check, compile_model, feeds_for, one_node

RNG = np.random.default_rng(7)


def floats(*shape):
    return np.asarray(RNG.standard_normal(shape), np.float32)


def ints(*values):
    return np.array(values, np.int64)


CONV = {
    "plain": ([1, 3, 9, 7], (5, 3, 3, 3), {}),
    "batch of five": ([5, 3, 9, 7], (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "empty batch": ([0, 3, 9, 7], (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one pixel": ([1, 4, 1, 1], (8, 4, 1, 1), {}),
    "odd pads": ([1, 3, 8, 8], (4, 3, 3, 2), {"pads": [0, 1, 2, 0]}),
    "strides": ([2, 3, 11, 13], (4, 3, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "dilations": ([1, 2, 13, 11], (3, 2, 3, 3), {"dilations": [2, 3]}),
    "groups": ([1, 6, 7, 7], (9, 2, 3, 3), {"group": 3}),
    "depthwise": ([1, 7, 9, 9], (7, 1, 3, 3), {"group": 7, "pads": [1, 1, 1, 1]}),
    "depthwise times two": ([2, 5, 9, 9], (10, 1, 5, 5), {"group": 5, "strides": [2, 2]}),
    "depthwise large": ([1, 3, 17, 17], (3, 1, 11, 11), {"group": 3}),
    "depthwise of one": ([1, 1, 6, 6], (4, 1, 3, 3), {"group": 1}),
    "same upper": ([1, 3, 8, 8], (4, 3, 4, 4), {"auto_pad": "SAME_UPPER"}),
    "same lower, strides": (
        [1, 3, 8, 9],
        (4, 3, 4, 3),
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ),
    "valid": ([1, 3, 8, 8], (4, 3, 4, 4), {"auto_pad": "VALID"}),
    "lines": ([2, 3, 20], (4, 3, 5), {"pads": [2, 1], "strides": [2]}),
    "depthwise lines": ([2, 6, 20], (6, 1, 3), {"group": 6, "dilations": [3]}),
    "prime channels": ([1, 17, 5, 5], (13, 17, 3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", CONV)
def test_conv(name, bias):
    shape, kernel, attributes = CONV[name]
    given = [shape, floats(*kernel)]
    if bias:
        given.append(floats(kernel[0]))
    check(one_node("Conv", given, **attributes))


CONV_TRANSPOSE = {
    "plain": ([1, 4, 5, 6], (4, 3, 3, 3), {}),
    "strides": ([2, 4, 5, 6], (4, 3, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "output padding": (
        [1, 4, 5, 6],
        (4, 3, 3, 3),
        {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 0, 1, 2]},
    ),
    "groups": ([1, 6, 5, 5], (6, 2, 3, 3), {"group": 3, "strides": [2, 2]}),
    "dilations": ([1, 3, 5, 5], (3, 4, 3, 3), {"dilations": [2, 2]}),
    "lines": ([1, 4, 9], (4, 3, 4), {"strides": [2], "output_padding": [1]}),
    "empty batch": ([0, 4, 5, 6], (4, 3, 3, 3), {}),
}


@pytest.mark.parametrize("name", CONV_TRANSPOSE)
def test_conv_transpose(name):
    shape, kernel, attributes = CONV_TRANSPOSE[name]
    groups = attributes.get("group", 1)
    given = [shape, floats(*kernel), floats(kernel[1] * groups)]
    check(one_node("ConvTranspose", given, **attributes), oracle="onnxruntime")


POOLS = {
    "plain": ([1, 3, 8, 8], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "odd": ([2, 5, 9, 7], {"kernel_shape": [3, 2], "strides": [2, 1]}),
    "pads": ([1, 3, 8, 8], {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1]}),
    "ceil": ([1, 3, 8, 8], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "ceil, pads": (
        [1, 3, 7, 7],
        {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    ),
    "ceil, left out": (
        [1, 1, 4, 4],
        {"kernel_shape": [1, 2], "strides": [2, 2], "ceil_mode": 1, "pads": [0, 0, 0, 1]},
    ),
    "lines": ([2, 3, 11], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    "same": ([1, 3, 9, 9], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
    "empty batch": ([0, 3, 8, 8], {"kernel_shape": [2, 2]}),
    "whole": ([1, 3, 5, 5], {"kernel_shape": [5, 5]}),
}


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", POOLS)
def test_pool(op_type, name):
    shape, attributes = POOLS[name]
    # The MaxPool of onnx's evaluator takes the pads of one axis for those of the other.
    oracle = "onnxruntime" if name == "pads" else None
    check(one_node(op_type, [shape], **attributes), oracle=oracle)


def test_same_pads_where_only_the_strided_axis_is_known():
    same = {"auto_pad": "SAME_UPPER", "strides": [2, 1]}
    model = one_node("MaxPool", [[1, 3, 7, "W"]], kernel_shape=[3, 3], **same)
    program = check(model, feeds_for(model, sizes={"W": 5}))
    check(model, feeds_for(model, sizes={"W": 8}), program=program)


def test_max_pool_dilations():
    check(one_node("MaxPool", [[1, 3, 9, 9]], kernel_shape=[3, 3], dilations=[2, 2]))


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [2, 0, 0, 1]])
def test_average_pool_that_counts_padding(pads):
    model = one_node(
        "AveragePool", [[2, 3, 7, 6]], kernel_shape=[3, 3], pads=pads, count_include_pad=1
    )
    check(model)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [[2, 3, 5, 7], [1, 1, 1, 1], [2, 3, 9], [1, 2, 3, 4, 5]])
def test_global_pool(op_type, shape):
    check(one_node(op_type, [shape]), oracle="onnxruntime")


UNARY = {
    "Abs": {},
    "Ceil": {},
    "Cos": {},
    "Elu": {"alpha": 0.7},
    "Exp": {},
    "Floor": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "LeakyRelu": {"alpha": 0.2},
    "Neg": {},
    "Relu": {},
    "Round": {},
    "Sigmoid": {},
    "Sin": {},
    "Tanh": {},
    "Identity": {},
    "Reciprocal": {},
}


@pytest.mark.parametrize("shape", [[], [1], [17], [2, 3, 5], [0, 4], [1, 2, 1, 3, 1, 2]], ids=str)
@pytest.mark.parametrize("op_type", UNARY)
def test_unary(op_type, shape):
    check(one_node(op_type, [shape], **UNARY[op_type]))


@pytest.mark.parametrize("op_type", ["Log", "Sqrt"])
def test_functions_of_positive_numbers(op_type):
    model = one_node(op_type, [[5, 7]])
    check(model, {"x0": np.abs(floats(5, 7)) + np.float32(1e-3)})


@pytest.mark.parametrize("exponent", [3.0, 2.0, 1.0, 0.5, -0.5])
def test_pow(exponent):
    model = one_node("Pow", [[5, 7], np.array(exponent, np.float32)])
    check(model, {"x0": np.abs(floats(5, 7)) + np.float32(1e-3)})


def test_a_cube_of_any_sign_and_size():
    x = np.float32([-3, -0.0, 0, 2, 1e20, -1e20, 1e12, -1e12, np.inf, -np.inf, np.nan, 1e-20])
    model = one_node("Pow", [[12], np.array(3, np.float32)])
    with np.errstate(over="ignore"):
        check(model, {"x0": x})


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check(one_node("Gelu", [[3, 100]], opset=20, approximate=approximate))


@pytest.mark.parametrize("bounds", [(-0.5, 0.5), (None, 0.5), (-0.5, None), (0.0, 6.0)])
def test_clip(bounds):
    limits = [None if bound is None else np.array(bound, np.float32) for bound in bounds]
    check(one_node("Clip", [[3, 7], *limits]))


EXTREMES = np.array(
    [
        -np.inf,
        -1e38,
        -1e30,
        -200,
        -86,
        -30,
        -1,
        -0.0,
        0,
        1e-8,
        1,
        30,
        86,
        1e27,
        1e38,
        np.inf,
        np.nan,
    ],
    np.float32,
)


@pytest.mark.parametrize(
    "op_type",
    ["Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg",
     "Relu", "Round", "Sigmoid", "Softmax", "Sqrt", "Tanh"],
)  # fmt: skip
def test_functions_of_infinities_and_nan(op_type):
    """Infinities, huge numbers and NaN: the results of the specification's formula."""
    model = one_node(op_type, [[17, 1] if op_type == "Softmax" else [17]])
    feed = EXTREMES.reshape(17, 1) if op_type == "Softmax" else EXTREMES
    # onnxruntime's Sigmoid is 0 from about -18 on: less precise than what is tested.
    oracle = "onnx" if op_type == "Sigmoid" else None
    expected, got = run_both(model, {"x0": feed}, oracle)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-5, atol=1.2e-38)


def run_both(model, feeds, oracle=None):
    (expected,) = expected_outputs(model, feeds, oracle).values()
    (got,) = compile_model(model).run(feeds).values()
    return expected, got


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("constant_first", [False, True])
def test_nan_stays_in_the_greater_and_the_lesser(op_type, constant_first):
    constant = np.float32([0.5])
    given = [constant, [3]] if constant_first else [[3], constant]
    model = one_node(op_type, given)
    feeds = {name: np.array([np.nan, -2, 2], np.float32) for name in feeds_for(model)}
    check(model, feeds)
    two = {"x0": feeds[next(iter(feeds))], "x1": np.array([1, np.nan, -3], np.float32)}
    check(one_node(op_type, [[3], [3]]), two)


BROADCASTS = [
    ([3, 4], [3, 4]),
    ([3, 4], [4]),
    ([3, 4], []),
    ([], []),
    ([3, 1], [1, 4]),
    ([2, 1, 4, 1], [3, 1, 5]),
    ([1], [0]),
    ([2, 0], [2, 1]),
    ([1, 1, 1, 1, 1, 2], [3, 1, 2, 1, 2, 1]),
]


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_binary(op_type, shapes):
    check(one_node(op_type, shapes))
    constant = np.asarray(floats(*shapes[1]) + np.float32(3))
    check(one_node(op_type, [shapes[0], constant]))
    check(one_node(op_type, [constant, shapes[0]]))


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (2, 3, 4, 5), (5,)], ids=str)
def test_prelu(slope):
    check(one_node("PRelu", [[2, 3, 4, 5], floats(*slope)]))


def test_sum_of_three():
    check(one_node("Sum", [[3, 4], [4], [3, 1]]))
    check(one_node("Sum", [[3, 4]]))


ALONE = {
    **{kind: f"h = {kind}(x)" for kind in ("Sum", "Max", "Min", "Mean", "Identity", "Dropout")},
    "Concat": "h = Concat<axis = 1>(x)",
    "ReduceMean": "axes = Constant<value_ints = [2]>() h = ReduceMean(x, axes)",
    "Pow": "one = Constant<value_float = 1.0>() h = Pow(x, one)",
    "AveragePool": "h = AveragePool<kernel_shape = [1]>(x)",
    "Tile": "times = Constant<value_ints = [1, 1, 1]>() h = Tile(x, times)",
    "Expand": "shape = Constant<value_ints = [2, 3, 1]>() h = Expand(x, shape)",
}
AFTER = {
    "Relu": "y = Relu(h)",
    "Clip": "y = Clip(h, low, high)",
    "Clip from below": "y = Clip(h, low)",
    "Relu of a Sum": "i = Sum(h) y = Relu(i)",
    "SiLU": "i = Sigmoid(h) y = Mul(h, i)",
    **{f: f"y = {f}(h)" for f in ("LeakyRelu", "HardSwish", "Sigmoid", "Gelu", "Tanh", "Elu")},
    "residual": "i = Add(h, x) y = Relu(i)",
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("alone", ALONE)
def test_activations_behind_what_returns_its_operand(alone, after):
    """The activation that is fused stays where the operation before it is none."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[2,3,1] x) => (float[2,3,1] y)
        <float low = {{-0.25}}, float high = {{0.5}}> {{ {ALONE[alone]} {AFTER[after]} }}"""
    )
    check(model)


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"transA": 1}, {"alpha": 0.5, "beta": 2.0}]
)
@pytest.mark.parametrize("bias", [None, (7,), (1, 7), (5, 7), (5, 1), (), (1,)], ids=str)
def test_gemm(attributes, bias):
    a = [3, 5] if attributes.get("transA") else [5, 3]
    b = floats(7, 3) if attributes.get("transB") else floats(3, 7)
    given = [a, b] if bias is None else [a, b, floats(*bias)]
    check(one_node("Gemm", given, **attributes))


def test_gemm_of_computed_matrices():
    check(one_node("Gemm", [[5, 3], [3, 7], [7]]))
    check(one_node("Gemm", [[5, 3], [7, 3]], transB=1))
    check(one_node("Gemm", [[5, 3], floats(3, 7), [5, 7]]))


MATMULS = [
    ([5, 3], [3, 7]),
    ([2, 5, 3], [3, 7]),
    ([2, 5, 3], [2, 3, 7]),
    ([2, 1, 5, 3], [4, 3, 7]),
    ([3], [3]),
    ([3], [3, 7]),
    ([5, 3], [3]),
    ([3], [2, 3, 7]),
    ([2, 5, 3], [3]),
    ([0, 3], [3, 7]),
    ([2, 0], [0, 3]),
    ([1, 1], [1, 1]),
    ([3, 129], [129, 31]),
]


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul(shapes):
    check(one_node("MatMul", shapes))
    if 0 not in shapes[1]:
        check(one_node("MatMul", [shapes[0], floats(*shapes[1])]))
        check(one_node("MatMul", [floats(*shapes[0]), shapes[1]]), native=None)


@pytest.mark.parametrize(
    "op_type", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"]
)
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2), (1, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduce(op_type, axes, keepdims):
    shape = [2, 3, 5, 4]
    check(one_node(op_type, [shape, ints(*axes)], keepdims=keepdims))
    if op_type != "ReduceSum":
        check(one_node(op_type, [shape], opset=13, axes=list(axes), keepdims=keepdims))


def test_reductions_over_all_axes_and_none():
    check(one_node("ReduceMean", [[2, 3]]))
    check(one_node("ReduceSum", [[2, 3]], noop_with_empty_axes=1))
    check(one_node("ReduceSum", [[2, 0], ints(1)]))
    check(one_node("ReduceMax", [[2, 1, 3], ints(1)], keepdims=0))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_softmax(axis):
    check(one_node("Softmax", [[3, 5, 7]], axis=axis))
    check(one_node("Softmax", [[3, 5, 7]], opset=11, axis=axis))


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(axis, bias):
    shape = [3, 5, 33]
    tail = shape[axis % 3 :]
    given = [shape, floats(*tail), *([floats(*tail)] if bias else [])]
    check(one_node("LayerNormalization", given, axis=axis))


@pytest.mark.parametrize("rows", [1, 17, 5000])
def test_softmax_of_pairs(rows):
    model = one_node("Softmax", [["N", 2]])
    feed = floats(rows, 2) * 20
    extremes = [[np.inf, 0], [-np.inf, 0], [1e38, -1e38], [0, 100], [-0.0, 0], [3, 3]]
    feed[: min(rows, 6)] = extremes[: min(rows, 6)]
    check(model, {"x0": np.asarray(feed[1:] if rows > 1 else feed, np.float32)})
    expected, got = run_both(model, {"x0": np.float32([[0, -80], [30, 60], [1, 1]])})
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (65, 130)])
def test_planes_to_pixels(channels, size):
    """The layout change that the input of an image network goes through."""
    check(one_node("Transpose", [[2, channels, *size]], perm=[0, 2, 3, 1]))
    check(one_node("Transpose", [[2, channels, size[0]]], perm=[0, 2, 1]))


def test_layer_normalization_far_from_zero():
    """The variance is that of differences: nothing cancels."""
    model = one_node("LayerNormalization", [[4, 64], np.ones(64, np.float32)])
    check(model, {"x0": floats(4, 64) + np.float32(1000)}, tolerance=2e-4)


def test_rms_normalization():
    check(one_node("RMSNormalization", [[3, 5, 33], floats(33)], opset=23))


def test_batch_normalization():
    given = [[2, 3, 4, 5], floats(3), floats(3), floats(3), np.abs(floats(3))]
    check(one_node("BatchNormalization", given))
    check(one_node("BatchNormalization", [[2, 3], *given[1:]]))
    # A vector is a batch of one channel.
    check(one_node("BatchNormalization", [[7], floats(1), floats(1), floats(1), np.ones(1, "f")]))
    check(one_node("BatchNormalization", [[7], [1], [1], [1], np.ones(1, "f")]))
