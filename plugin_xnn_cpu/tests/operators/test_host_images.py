"""Col2Im, GridSample, Einsum and matrices of double by numpy, against onnxruntime.

Col2Im of small integers is exact. Others: 1e-5 of the largest element in float32 (places in a grid
are rounded differently), 1e-12 in double.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnxruntime_kit import session_of
from xnn_kit import close, compile_model

from narrowpass.errors import BackendError

RNG = np.random.default_rng(11)


def model_of(op_type, feeds, version=20, **attributes):
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}{axis}" for axis in range(array.ndim)],
        )
        for name, array in feeds.items()
    ]
    node = helper.make_node(op_type, list(feeds), ["y"], name="node", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(next(iter(feeds.values())).dtype)
    result = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "g", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)


def agree(op_type, feeds, tolerance=0.0, **more):
    model = model_of(op_type, feeds, **more)
    session = session_of(model, optimized=True)
    (expected,) = session.run(None, feeds)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        got = program.run(feeds)["y"]
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if tolerance:
        close(got, expected, tolerance)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("image", "block", "named"),
    [
        ((5, 6), (2, 3), {}),
        ((5, 6), (2, 2), {"strides": [2, 3]}),
        ((6, 6), (2, 2), {"dilations": [1, 4]}),
        ((5, 5), (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((1, 1), (1, 1), {}),
        ((4, 4, 5), (1, 2, 3), {"strides": [1, 2, 1]}),
    ],
)
def test_col2im(image, block, named):
    rank = len(image)
    pads, steps = named.get("pads", [0] * 2 * rank), named.get("strides", [1] * rank)
    spread = named.get("dilations", [1] * rank)
    counts = [
        (image[i] + pads[i] + pads[i + rank] - spread[i] * (block[i] - 1) - 1) // steps[i] + 1
        for i in range(rank)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(counts)))
    x = RNG.integers(-9, 10, shape).astype(np.float32)
    feeds = {"x": x, "image": np.array(image), "block": np.array(block)}
    agree("Col2Im", feeds, **named)


def test_col2im_names_the_node_where_columns_do_not_fit():
    feeds = {"x": np.zeros((1, 4, 7), np.float32), "i": np.array([4, 4]), "b": np.array([2, 2])}
    with (
        compile_model(model_of("Col2Im", feeds)) as program,
        pytest.raises(BackendError, match="'node'"),
    ):
        program.run(feeds)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "version"), [("linear", 20), ("nearest", 20), ("bilinear", 16)])
@pytest.mark.parametrize("size", [(5, 7), (1, 1)])
def test_grid_sample(mode, version, padding, aligned, size):
    x = RNG.standard_normal((2, 3, *size)).astype(np.float32)
    # Drawn places are between pixels: rounding does not choose another one.
    grid = (RNG.uniform(-1.7, 1.7, (2, 4, 6, 2))).astype(np.float32)
    named = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    agree("GridSample", {"x": x, "grid": grid}, 1e-5, version=version, **named)


@pytest.mark.parametrize("aligned", [0, 1])
def test_points_far_beyond_the_border_are_at_it(aligned):
    """As nearer ones are for onnxruntime, which overflows at those that are far away."""
    onnxruntime = pytest.importorskip("onnxruntime")
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
    steps = np.array([-np.inf, -3e38, -1e10, -1.0, 0.2, 1.0, 1e10, 3e38, np.inf], np.float32)
    grid = np.stack(np.meshgrid(steps, steps), -1)[None]
    feeds = {"x": x, "grid": grid}
    model = model_of("GridSample", feeds, padding_mode="border", align_corners=aligned)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x, "grid": np.clip(grid, -3, 3)})
    with compile_model(model) as program, np.errstate(over="ignore"):
        close(program.run(feeds)["y"], expected, 1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_leaves_out_pixels_that_do_not_count(padding, aligned):
    """A pixel that is infinite or NaN spreads to the points that onnxruntime says, and no further.

    Beside the image a reflection has the pixel at the edge twice.
    """
    steps = np.array([-5.0, -2.5, -1.2, -0.95, -0.5, 0.1, 0.9, 1.3, 2.2, 4.0], np.float32)
    grid = np.stack(np.meshgrid(steps, steps), -1)[None]
    for place in range(12):
        for special in (np.nan, np.inf):
            x = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
            x.reshape(-1)[place] = special
            named = {"padding_mode": padding, "align_corners": aligned}
            agree("GridSample", {"x": x, "grid": grid}, 1e-5, **named)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i, j -> ij", [(3,), (4,)]),
        ("ij,jk", [(3, 4), (4, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("bii->bi", [(2, 3, 3)]),
        ("ij->", [(3, 4)]),
        ("bi,ij,bj->b", [(2, 3), (3, 4), (2, 4)]),
        ("ij,jk->ik", [(3, 0), (0, 2)]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_einsum(equation, shapes, dtype):
    feeds = {f"x{i}": RNG.standard_normal(shape).astype(dtype) for i, shape in enumerate(shapes)}
    agree("Einsum", feeds, 1e-5 if dtype == np.float32 else 1e-12, equation=equation)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (4, 5))])
def test_matmul_of_double(shapes):
    feeds = {name: RNG.standard_normal(shape) for name, shape in zip("ab", shapes, strict=True)}
    agree("MatMul", feeds, 1e-12, version=13)


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("named", [{}, {"alpha": 0.5, "beta": -2.0}])
@pytest.mark.parametrize("third", [None, (5,), (3, 1), ()])
def test_gemm_of_double(turned, named, third):
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 5))
    feeds = {"a": a.T.copy() if turned[0] else a, "b": b.T.copy() if turned[1] else b}
    if third is not None:
        feeds["c"] = RNG.standard_normal(third)
    agree("Gemm", feeds, 1e-12, version=13, transA=turned[0], transB=turned[1], **named)
