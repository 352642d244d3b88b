"""Reductions of any type, softmax's relatives, and normalizations of images.

The oracle is onnxruntime, and onnx's evaluator for what that has not.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from xnn_kit import check, compile_model, one_node

from narrowpass.errors import BackendError

RNG = np.random.default_rng(11)
AXES = {
    "all": None,
    "last": [-1],
    "first": [0],
    "middle": [1],
    "outer": [0, 2],
    "inner": [1, 2],
}
SHAPES = {"rows": (3, 5, 70), "columns": (7, 33, 300), "ones": (1, 1, 1), "few": (2, 3, 4)}
FLOATS = ("L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Prod", "Max", "Min", "Sum", "Mean")


def reduction(kind, dtype, rank, axes, keepdims, opset):
    since = 13 if kind == "ReduceSum" else 18
    given = opset < since
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes = {"keepdims": keepdims}
    initializers = []
    if axes is not None and given:
        attributes["axes"] = axes
    elif axes is not None:
        initializers = [onnx.numpy_helper.from_array(np.array(axes), "axes")]
    names = ["x", "axes"] if initializers else ["x"]
    node = helper.make_node(kind, names, ["y"], name="node", **attributes)
    left = rank if keepdims else rank - len(axes if axes is not None else range(rank))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", code, [f"d{i}" for i in range(rank)])],
        [helper.make_tensor_value_info("y", code, [f"e{i}" for i in range(left)])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_reductions_of_floats(kind, axes, keepdims, opset):
    model = reduction(f"Reduce{kind}", np.float32, 3, axes, keepdims, opset)
    program = compile_model(model)
    for shape in SHAPES.values():
        x = RNG.standard_normal(shape).astype(np.float32)
        if kind == "LogSum":
            x = np.abs(x)
        if kind == "Prod":
            x = np.exp2(RNG.uniform(-0.1, 0.1, shape)).astype(np.float32)
        # Some thousand float32 elements accumulated in another order: an error relative to their
        # magnitudes, which a mean of both signs is far below.
        least = float(np.abs(x).mean()) if kind == "Mean" and x.size else 0.0
        check(model, {"x": x}, program=program, oracle="onnxruntime", tolerance=3e-5, least=least)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("kind", ["Sum", "Prod", "Max", "Min", "Mean"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_integers_and_doubles(kind, axes, dtype):
    model = reduction(f"Reduce{kind}", dtype, 3, axes, 1, 18)
    program = compile_model(model, threads=2)
    for shape in SHAPES.values():
        x = RNG.integers(-3, 4, shape).astype(dtype)
        if kind == "Prod":
            x = RNG.choice(np.array([-1, 1], dtype), shape)
        check(model, {"x": x}, program=program, oracle="onnxruntime", tolerance=1e-12)


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_extremes_of_bytes(kind, dtype):
    model = reduction(f"Reduce{kind}", dtype, 3, [1], 0, 18)
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max + 1, (4, 5, 33)).astype(dtype)
    check(model, {"x": x}, oracle="onnxruntime")


def test_integer_reductions_wrap():
    model = reduction("ReduceSum", np.int32, 1, None, 0, 18)
    x = np.array([2**31 - 1, 2**31 - 1, 5], np.int32)
    (got,) = compile_model(model).run({"x": x}).values()
    assert got == np.sum(x, dtype=np.int32)


@pytest.mark.parametrize("kind", FLOATS)
def test_nan_and_infinity_in_reductions(kind):
    model = reduction(f"Reduce{kind}", np.float32, 2, [1], 1, 18)
    rows = np.ones((5, 40), np.float32)
    rows[0, 3], rows[1, 3], rows[2, 3], rows[3] = np.nan, np.inf, -np.inf, -np.inf
    if kind == "LogSum":
        rows[2:4] = 0
    oracle = "onnx" if kind in ("Max", "Min", "LogSumExp") else "onnxruntime"
    if kind == "LogSumExp":  # the evaluator has NaN for infinity less infinity
        with np.errstate(invalid="ignore"):
            expected = np.logaddexp.reduce(rows.astype(np.float64), 1, keepdims=True)
        (got,) = compile_model(model).run({"x": rows}).values()
        np.testing.assert_allclose(got, expected.astype(np.float32), rtol=1e-6)
        return
    check(model, {"x": rows}, oracle=oracle, tolerance=1e-6)


@pytest.mark.parametrize("kind", FLOATS)
def test_reductions_of_no_elements(kind):
    model = reduction(f"Reduce{kind}", np.float32, 2, [1], 1, 18)
    (got,) = compile_model(model).run({"x": np.zeros((3, 0), np.float32)}).values()
    none = {"Prod": 1.0, "Max": -np.inf, "Min": np.inf, "Mean": np.nan}
    expected = none.get(kind, -np.inf if kind.startswith("Log") else 0.0)
    np.testing.assert_array_equal(got, np.full((3, 1), expected, np.float32))


@pytest.mark.parametrize("kind", ["LogSoftmax", "Hardmax", "Softmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_and_relatives_along_each_axis(kind, axis, opset):
    if axis < 0 and opset < 13 and kind == "Hardmax":
        axis = 2
    model = one_node(kind, [["a", "b", "c"]], opset=opset, axis=axis)
    program = compile_model(model)
    for shape in ((3, 4, 70), (2, 33, 2), (1, 1, 1), (0, 3, 2)):
        x = (RNG.standard_normal(shape) * 9).astype(np.float32)
        check(model, {"x0": x}, program=program, oracle="onnxruntime", tolerance=1e-6)


def test_log_softmax_of_nonfinite_numbers():
    model = one_node("LogSoftmax", [["a", "b"]], opset=13)
    x = RNG.standard_normal((5, 40)).astype(np.float32)
    x[0, 3], x[1, 3], x[2, :20], x[3], x[4, 0] = np.nan, np.inf, -np.inf, 1e38, -3e38
    check(model, {"x0": x}, oracle="onnxruntime", tolerance=1e-6)


def test_hardmax_takes_nan_for_the_greatest():
    model = one_node("Hardmax", [["a", "b"]], opset=13)
    x = RNG.standard_normal((5, 40)).astype(np.float32)
    for row, columns in enumerate(([3], [0], [5, 9], range(40), [39])):
        x[row, columns] = np.nan
    x[0, 30] = x[1, 30] = x[2, 2] = np.inf
    check(model, {"x0": x}, oracle="onnx")


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_division_by_a_norm(order, axis):
    model = one_node("LpNormalization", [["a", "b", "c"]], opset=17, axis=axis, p=order)
    program = compile_model(model)
    for shape in ((3, 4, 70), (2, 33, 2), (1, 1, 1)):
        x = RNG.standard_normal(shape).astype(np.float32)
        x[0, 0] = 0
        check(model, {"x0": x}, program=program, oracle="onnxruntime", tolerance=1e-6)


IMAGES = [(2, 12, 5, 7), (1, 12, 1, 1), (3, 12, 40, 33), (0, 12, 3, 3)]


@pytest.mark.parametrize("threads", [1, 3])
def test_instance_normalization(threads):
    scale, bias = (RNG.standard_normal(12).astype(np.float32) for _ in "sb")
    model = one_node("InstanceNormalization", [["n", 12, "h", "w"], scale, bias], opset=17)
    program = compile_model(model, threads=threads)
    for shape in IMAGES:
        x = (RNG.standard_normal(shape) * 3 + 5).astype(np.float32)
        if shape[0]:
            # onnxruntime subtracts mean · scale from the bias, which loses digits.
            check(model, {"x0": x}, program=program, tolerance=3e-6, oracle="onnx")
        else:
            assert program.run({"x0": x})["y0"].shape == shape


@pytest.mark.parametrize("groups", [1, 3, 4, 12])
@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization(groups, opset):
    pytest.importorskip("onnxruntime")  # onnx's evaluator loses digits where a variance is small
    count = groups if opset < 21 else 12
    scale, bias = (RNG.standard_normal(count).astype(np.float32) for _ in "sb")
    shapes = [["n", 12, "h", "w"], scale, bias]
    model = one_node("GroupNormalization", shapes, opset=opset, num_groups=groups, epsilon=1e-3)
    program = compile_model(model)
    for shape in IMAGES[:3]:
        x = (RNG.standard_normal(shape) * 3 + 5).astype(np.float32)
        check(model, {"x0": x}, program=program, tolerance=3e-6)


@pytest.mark.parametrize("channels", [6, 24, 96, 330])
@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("InstanceNormalization", 0),
        ("LRN", 0),
        *(("GroupNormalization", groups) for groups in (1, 2, 3)),
    ],
)
def test_images_stay_in_the_order_of_a_convolution(kind, channels, groups):
    """Between two convolutions nothing is transposed but what comes and goes."""
    weights = RNG.standard_normal((channels, 3, 1, 1)).astype(np.float32)
    back = RNG.standard_normal((3, channels, 1, 1)).astype(np.float32) / channels
    scale, bias = (RNG.standard_normal(channels).astype(np.float32) for _ in "sb")
    names = ["c"] if kind == "LRN" else ["c", "s", "b"]
    attributes = {"GroupNormalization": {"num_groups": groups}, "LRN": {"size": 5, "alpha": 0.1}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(kind, names, ["n"], **attributes.get(kind, {})),
        helper.make_node("Conv", ["n", "v"], ["y"]),
    ]
    arrays = {"w": weights, "v": back, **({} if kind == "LRN" else {"s": scale, "b": bias})}
    value = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3, "h", "k"])
        for name in "xy"
    ]
    constants = [onnx.numpy_helper.from_array(item, name) for name, item in arrays.items()]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    program = compile_model(onnx.shape_inference.infer_shapes(model))
    for shape in ((2, 3, 6, 5), (1, 3, 40, 9)):
        feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
        check(model, feeds, program=program, tolerance=1e-5)
        kernels = [row.kernel for row in program.profile(feeds, runs=1)]
        assert sum("transpose" in kernel for kernel in kernels) <= 2


def test_channels_that_are_no_whole_groups_name_the_node():
    scale = np.ones(6, np.float32)
    shapes = [["n", "c", "h"], scale, scale]
    program = compile_model(one_node("GroupNormalization", shapes, opset=21, num_groups=4))
    with pytest.raises(BackendError, match=r"'node'.*6 channels are not 4 groups"):
        program.run({"x0": np.zeros((1, 6, 2), np.float32)})


def test_a_mean_far_from_zero_costs_no_digits():
    """The variance is not E[x²] - E[x]²: that would be 0, or negative, here."""
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    model = one_node("InstanceNormalization", [["n", 2, "h", "w"], ones, zeros], opset=17)
    x = (RNG.standard_normal((1, 2, 64, 64)) + 4096).astype(np.float32)
    (got,) = compile_model(model).run({"x0": x}).values()
    wide = x.astype(np.float64)
    mean, variance = (f(wide, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    # A step of float32 at 4096 is 0.0005; the mean is rounded to half of one.
    np.testing.assert_allclose(got, (wide - mean) / np.sqrt(variance + 1e-5), atol=3e-4)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 30])
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_local_response_normalization(size, beta):
    model = one_node(
        "LRN", [["n", 12, "h", "w"]], opset=13, size=size, alpha=0.3, beta=beta, bias=1.5
    )
    program = compile_model(model)
    for shape in IMAGES[:3]:
        x = (RNG.standard_normal(shape) * 3).astype(np.float32)
        (got,) = program.run({"x0": x}).values()
        # onnxruntime has odd sizes only, and onnx's evaluator other channels: by the definition.
        squares = np.square(x.astype(np.float64))
        neighbourhood = np.zeros_like(squares)
        for channel in range(12):
            first = max(0, channel - (size - 1) // 2)
            neighbourhood[:, channel] = squares[:, first : channel + size // 2 + 1].sum(axis=1)
        np.testing.assert_allclose(got, x / (1.5 + 0.3 / size * neighbourhood) ** beta, rtol=3e-6)


def test_batch_normalization_with_computed_parameters():
    model = one_node("BatchNormalization", [["n", 6, "h"], [6], [6], [6], [6]], opset=15)
    feeds = {f"x{i}": RNG.standard_normal(6).astype(np.float32) for i in range(1, 5)}
    feeds |= {"x0": RNG.standard_normal((3, 6, 5)).astype(np.float32), "x4": np.abs(feeds["x4"])}
    check(model, feeds, oracle="onnxruntime", tolerance=3e-6)


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [2, 3], [-1]])
def test_mean_variance_normalization(axes):
    model = one_node("MeanVarianceNormalization", [[2, 3, 9, 7]], opset=13, axes=axes)
    x = (RNG.standard_normal((2, 3, 9, 7)) * 3 + 2).astype(np.float32)
    check(model, {"x0": x}, oracle="onnxruntime", tolerance=1e-5)
