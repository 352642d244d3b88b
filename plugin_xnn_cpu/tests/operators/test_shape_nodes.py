"""Operators that move, repeat or choose elements, at their borders, against onnx's evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper
from xnn_kit import check, close, compile_model, one_node

from narrowpass.errors import BackendError

RNG = np.random.default_rng(7)


def floats(*shape):
    return np.asarray(RNG.standard_normal(shape), np.float32)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [
        ([2, 6], [3, 4], 0),
        ([2, 6], [-1], 0),
        ([2, 6], [0, 2, -1], 0),
        ([0, 6], [0, 2, 3], 0),
        ([0, 6], [3, 0], 1),
        ([], [1, 1], 0),
        ([1], [], 0),
    ],
)
def test_reshape(shape, target, allowzero):
    target = np.array(target, np.int64)
    check(one_node("Reshape", [shape, target], allowzero=allowzero))


@pytest.mark.parametrize("perm", [None, [0, 2, 3, 1], [3, 0, 1, 2], [0, 1, 3, 2], [1, 0, 2, 3]])
def test_transpose(perm):
    attributes = {} if perm is None else {"perm": perm}
    check(one_node("Transpose", [[2, 3, 5, 7]], **attributes))
    check(one_node("Transpose", [[2, 1, 5, 1]], **attributes))


def test_squeeze_and_unsqueeze():
    check(one_node("Squeeze", [[1, 3, 1, 2], ints(0, -2)]))
    check(one_node("Squeeze", [[1, 3, 1, 2]]))
    check(one_node("Unsqueeze", [[3, 2], ints(0, -1)]))
    check(one_node("Flatten", [[2, 3, 4]], axis=2))
    check(one_node("Flatten", [[2, 3, 4]], axis=0))


@pytest.mark.parametrize("target", [(2, 3, 4), (1, 1, 4), (5, 1, 3, 4), (3, 1), (1,)], ids=str)
def test_expand(target):
    check(one_node("Expand", [[3, 1], ints(*target)]))


def test_tile():
    check(one_node("Tile", [[2, 3, 1], ints(2, 1, 3)]))
    check(one_node("Tile", [[2, 3], ints(1, 1)]))
    check(one_node("Tile", [[2, 3], ints(0, 2)]))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    check(one_node("DepthToSpace", [[2, 12, 3, 5]], blocksize=2, mode=mode))
    check(one_node("SpaceToDepth", [[2, 3, 4, 6]], blocksize=2))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    shapes = [[2, 3, 4] for _ in range(3)]
    shapes[1][axis] = 5
    shapes[2][axis] = 0
    check(one_node("Concat", shapes, axis=axis))
    check(one_node("Concat", shapes[:1], axis=axis))


SLICES = [
    ((0,), (2,), (0,), (1,)),
    ((1, 1), (3, 100), (0, 2), (1, 2)),
    ((-1,), (-100,), (1,), (-1,)),
    ((-1, 5), (0, -10), (0, 2), (-2, -3)),
    ((2,), (1,), (1,), (1,)),
    ((-3,), (-1,), (-1,), (1,)),
]


@pytest.mark.parametrize("bounds", SLICES, ids=str)
def test_slice(bounds):
    check(one_node("Slice", [[4, 5, 6], *(ints(*bound) for bound in bounds)]))


def test_slice_of_old_operator_sets():
    check(one_node("Slice", [[4, 5, 6]], opset=9, starts=[1, -3], ends=[3, 100], axes=[0, 2]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis):
    sizes = [4, 6, 8]
    check(one_node("Split", [sizes, ints(1, sizes[axis] - 1)], outputs=2, axis=axis))
    check(one_node("Split", [sizes], outputs=2, axis=axis, num_outputs=2))
    check(one_node("Split", [sizes], opset=13, outputs=2, axis=axis))


def test_split_that_is_not_even():
    check(one_node("Split", [[7, 2]], outputs=3, num_outputs=3))


PADS = [(1, 2, 3, 4), (0, 0, 0, 0), (-1, 0, 0, -2), (-1, 2, 3, -1)]


@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize("value", [0.0, -1.5])
def test_pad(pads, value):
    given = [[4, 5], ints(*pads), np.array(value, np.float32)]
    oracle = "onnxruntime" if min(pads) < 0 else None  # which onnx's evaluator does not crop by
    check(one_node("Pad", given), oracle=oracle)
    check(one_node("Pad", [[4, 5]], opset=10, pads=list(pads), value=value), oracle=oracle)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "pads", [(1, 2, 3, 1), (0, 0, 2, 0), (-1, 2, 0, -2), (0, 0, 0, 0)], ids=str
)
def test_pad_by_other_elements(mode, pads):
    check(one_node("Pad", [[5, 6], ints(*pads)], opset=19, mode=mode), oracle="onnxruntime")


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_pad_by_other_elements_in_old_operator_sets(mode):
    model = one_node("Pad", [[2, 3, 5, 4]], opset=2, mode=mode, pads=[0, 0, 2, 1, 0, 0, 3, 2])
    check(model, oracle="onnxruntime")


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_of_images_between_convolutions(mode):
    """Images lie as [N, H, W, C] there: rows of pixels are copied as they are."""
    text = f"""<ir_version: 10, opset_import: ["": 19]>
        g (float[N, 3, H, W] x) => (float[N, 5, A, B] y)
        <int64[8] pads = {{0, 0, 1, 2, 0, 0, 1, 2}}> {{
            a = Conv(x, w) p = Pad<mode = "{mode}">(a, pads) y = Conv(p, v)
        }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 1, 1)), ("v", (5, 4, 3, 3))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    program = compile_model(model, threads=2)
    for shape in ((1, 3, 5, 6), (2, 3, 9, 4), (1, 3, 64, 80)):
        feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
        check(model, feeds, program=program)


def test_pads_larger_than_the_axis():
    model = one_node("Pad", [["N", 3], ints(0, 1, 0, 1)], mode="edge")
    program = compile_model(model)
    model = one_node("Pad", [["N", 3], ints(1, 0, 1, 0)], mode="edge")
    close(program.run({"x0": np.zeros((0, 3), np.float32)})["y0"], np.zeros((0, 5), np.float32))
    with pytest.raises(BackendError, match=r"node 'node'.*no elements to fill the pads"):
        compile_model(model).run({"x0": np.zeros((0, 3), np.float32)})


def test_pad_of_axes():
    check(one_node("Pad", [[4, 5, 6], ints(1, 2), np.float32([2])[0:1].reshape(()), ints(-2)]))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_gather(axis, dtype):
    indices = np.array([[0, -1], [2, 1]], dtype)
    check(one_node("Gather", [[3, 4, 5], indices], axis=axis))
    check(one_node("Gather", [[3, 4, 5], np.array(1, dtype)], axis=axis))


def test_gather_out_of_range_is_an_error():
    from narrowpass.errors import BackendError

    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    index = helper.make_tensor_value_info("i", TensorProto.INT64, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="pick")
    model = helper.make_model(helper.make_graph([node], "g", [data, index], [result]))
    program = compile_model(model)
    for wrong in (3, -4, 2**40, -(2**62)):
        feeds = {"x": np.ones(3, np.float32), "i": ints(0, wrong)}
        with pytest.raises(BackendError, match=r"'pick'.*index is out of range"):
            program.run(feeds)
    feeds = {"x": np.arange(3, dtype=np.float32), "i": ints(-1, 0)}
    np.testing.assert_array_equal(program.run(feeds)["y"], [2, 0])


@pytest.mark.parametrize(
    "shapes", [([4, 5], [4, 5], [4, 5]), ([5], [4, 1], []), ([2, 1, 3], [4, 1], [1])], ids=str
)
def test_where(shapes):
    kinds = [TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT]
    inputs = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in zip("cxy", kinds, shapes, strict=True)
    ]
    node = helper.make_node("Where", ["c", "x", "y"], ["z"])
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="z")])
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph))
    feeds = {"c": RNG.random(shapes[0]) > 0.5, "x": floats(*shapes[1]), "y": floats(*shapes[2])}
    check(model, {name: np.asarray(value) for name, value in feeds.items()})


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.int64, np.uint8, np.float32])
def test_cast(dtype):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = helper.make_tensor_value_info("x", kind, [3, 4])
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name="y")])
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph))
    check(model, {"x": (floats(3, 4) * 100).astype(dtype)})


RESIZES = [
    ("linear", "half_pixel", [1, 1, 2, 2]),
    ("linear", "align_corners", [1, 1, 3, 2]),
    ("linear", "asymmetric", [1, 1, 2, 3]),
    ("linear", "half_pixel", [1, 1, 0.5, 0.5]),
    ("nearest", "asymmetric", [1, 1, 2, 3]),
    ("nearest", "half_pixel", [1, 1, 2, 2]),
]


@pytest.mark.parametrize(("mode", "how", "scales"), RESIZES)
def test_resize(mode, how, scales):
    given = [[2, 3, 4, 6], None, np.float32(scales)]
    attributes = {"nearest_mode": "floor"} if how == "asymmetric" and mode == "nearest" else {}
    check(one_node("Resize", given, mode=mode, coordinate_transformation_mode=how, **attributes))


def test_resize_to_sizes():
    given = [[2, 3, 4, 6], None, None, ints(2, 3, 9, 11)]
    check(one_node("Resize", given, mode="linear", coordinate_transformation_mode="half_pixel"))


def test_a_grid_that_follows_from_shapes_changes_with_them():
    """As detectors build one: Range, Shape of a value that follows from shapes, and Expand."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18]> g (float[1, 4, h, w] x) => (float[1, 4, h, w] y)
        <int64 two = {2}, int64 three = {3}, float zero = {0}, float one = {1}, float half = {0.5},
         int64[2] column = {-1, 1}> {
            a = Relu(x)
            s = Shape(a)
            high = Gather(s, two)
            wide = Gather(s, three)
            highs = Cast <to = 1> (high)
            wides = Cast <to = 1> (wide)
            down = Range(zero, highs, one)
            along = Range(zero, wides, one)
            rows = Add(down, half)
            columns = Add(along, half)
            height = Shape(rows)
            width = Shape(columns)
            sizes = Concat <axis = 0> (height, width)
            stood = Reshape(rows, column)
            grid = Expand(stood, sizes)
            y = Add(a, grid)
        }
        """
    )
    program = compile_model(model)
    for h, w in [(4, 6), (3, 6), (5, 2), (1, 1), (4, 6)]:
        check(model, {"x": floats(1, 4, h, w)}, program=program)
