"""Winograd convolutions in float32, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from fp32_kit import EPILOGUES, EPSILON, STEEPEST, apply_epilogue, convolve, run
from hypothesis import given, settings
from hypothesis import strategies as st
from xnn_kit import check, compile_model, feeds_for, one_node

import narrowpass
from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native.own import fp32, fp32_winograd
from narrowpass_xnn_cpu.native.own.fp32_winograd import LARGEST_WEIGHT
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.table import create_convolution
from narrowpass_xnn_cpu.native.table.winograd import TILES, tile_for

pytestmark = pytest.mark.usefixtures("fp32_code")

POINTS = {2: (0, 1, -1), 4: (0, 0.625, -0.625, 1.5, -1.5)}


def matrices(tile):
    """Compute A, B and G of F(tile x tile, 3 x 3) in float64 by Cook-Toom interpolation.

    Its points are those of `POINTS` and infinity.
    """
    points = POINTS[tile]
    size = tile + 2
    a, g = np.zeros((size, tile)), np.zeros((size, 3))
    b = np.zeros((size, size))
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        a[i] = [point**k for k in range(tile)]
        g[i] = np.array([point**k for k in range(3)]) / np.prod([point - x for x in others])
        b[i, :-1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1
    b[-1] = np.poly(points)[::-1]
    return a, b, g


def transformed(x, kernel, pads, tile, *, magnitudes):
    """Compute a convolution by its definition by tiles, in float64; or with all magnitudes."""
    a, b, g = matrices(tile)
    top, left, bottom, right = pads
    n, height, width, channels = x.shape
    out = height + top + bottom - 2, width + left + right - 2
    tiles = [-(-size // tile) for size in out]
    wide = np.zeros((n, *[tile * count + 2 for count in tiles], channels))
    wide[:, top : top + height, left : left + width] = x[
        :, : wide.shape[1] - top, : wide.shape[2] - left
    ]
    kernel = kernel.astype(np.float64)
    if magnitudes:
        a, b, g, wide, kernel = (np.abs(array) for array in (a, b, g, wide, kernel))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (tile + 2, tile + 2), (1, 2))
    seen = seen[:, ::tile, ::tile]
    inputs = np.einsum("ip,jq,nhwcpq->nhwcij", b, b, seen, optimize=True)
    weights = np.einsum("ip,jq,opqc->ocij", g, g, kernel, optimize=True)
    result = np.einsum("nhwcij,ocij->nhwoij", inputs, weights, optimize=True)
    result = np.einsum("ik,jl,nhwoij->nhkwlo", a, a, result, optimize=True)
    result = result.reshape(n, tiles[0] * tile, tiles[1] * tile, -1)
    return result[:, : out[0], : out[1]]


def check_operator(operator, x, kernel, bias, attributes, epilogue, threads, residual=None):
    """Compare the output of an operator with float64.

    Inputs, weights, accumulators and outputs of the transforms are rounded: each rounding is at
    most `EPSILON` of the same computation on magnitudes.
    """
    exact = convolve(x, kernel, bias, attributes)
    tile = operator.params.tile
    most = transformed(x, kernel, attributes.pads, tile, magnitudes=True)
    most = most + (0 if bias is None else abs(bias)) + (0 if residual is None else abs(residual))
    got = run(operator, x, exact.shape, threads, residual)
    expected = apply_epilogue(exact, epilogue, residual)
    allowed = STEEPEST * (x.shape[-1] + 32) * EPSILON * most + 16 * EPSILON * np.abs(expected)
    wrong = np.abs(got - expected) > allowed
    assert not wrong.any(), (got[wrong][:3], expected[wrong][:3], allowed[wrong][:3])


@pytest.mark.parametrize("tile", TILES)
def test_the_bound_is_of_the_algorithm(tile):
    """The same computation without magnitudes equals the direct convolution."""
    rng = np.random.default_rng(2)
    x, kernel = rng.standard_normal((2, 7, 9, 3)), rng.standard_normal((5, 3, 3, 3))
    attributes = ConvAttributes((1, 0, 2, 1))
    found = transformed(x, kernel, attributes.pads, tile, magnitudes=False)
    np.testing.assert_allclose(found, convolve(x, kernel, None, attributes), rtol=0, atol=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    tile=st.sampled_from(TILES),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    pads=st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.integers(0, 5)] * 4)),
    inputs=st.sampled_from([1, 2, 3, 4, 7, 8, 15, 16, 17, 33]),
    outputs=st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 50, 64, 65, 80, 111, 130]),
    epilogue=EPILOGUES,
    has_bias=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_convolutions(
    seed, tile, batch, size, pads, inputs, outputs, epilogue, has_bias, threads
):  # fmt: skip
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads)
    size = [max(s, 3 - pads[i] - pads[i + 2], 1) for i, s in enumerate(size)]
    x = rng.standard_normal((batch, *size, inputs)).astype(np.float32)
    kernel = rng.standard_normal((outputs, 3, 3, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32) if has_bias else None
    stored = None if bias is None else Weight.of(bias)
    operator = fp32_winograd.BY_TILE[tile].create(
        Convolution(Weight.of(kernel), stored, attributes, epilogue)
    )
    out = operator.reshape(x.shape, shared(threads))
    residual = None
    if epilogue.residual:
        residual = rng.standard_normal((batch, *out, outputs)).astype(np.float32)
    check_operator(operator, x, kernel, bias, attributes, epilogue, threads, residual)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tile", TILES)
def test_work_is_divided_into_blocks_and_panels(tile, threads):
    """Many tiles are divided into blocks; panels of few tiles among threads."""
    rng = np.random.default_rng(3)
    attributes = ConvAttributes((1, 1, 1, 1))
    for size, channels, outputs in [((40, 46), 40, 20), ((8, 8), 20, 200)]:
        kernel = rng.standard_normal((outputs, 3, 3, channels)).astype(np.float32)
        x = rng.standard_normal((2, *size, channels)).astype(np.float32)
        operator = fp32_winograd.BY_TILE[tile].create(
            Convolution(Weight.of(kernel), None, attributes)
        )
        operator.reshape(x.shape, shared(threads))
        params = operator.params
        assert params.blocks > 1 if size[0] == 40 else params.blocks * params.parts >= threads
        check_operator(operator, x, kernel, None, attributes, Epilogue(), threads)


@pytest.mark.parametrize("tile", TILES)
def test_the_residual_may_alias_the_result(tile):
    rng = np.random.default_rng(4)
    kernel = rng.standard_normal((70, 3, 3, 20)).astype(np.float32)
    x = rng.standard_normal((1, 9, 6, 20)).astype(np.float32)
    residual = rng.standard_normal((1, 7, 4, 70)).astype(np.float32)
    for function in ("clamp", "silu"):
        epilogue = Epilogue(function, residual="before")
        operator = fp32_winograd.BY_TILE[tile].create(
            Convolution(Weight.of(kernel), None, ConvAttributes(), epilogue)
        )
        operator.reshape(x.shape, shared(1))
        got = run(operator, x, residual.shape, 1, residual, in_place=True)
        np.testing.assert_array_equal(got, run(operator, x, residual.shape, 1, residual))


@pytest.mark.parametrize(("tile", "largest", "usual"), [(2, 2.5, 1.0), (4, 8.0, 3.0)])
@pytest.mark.parametrize("channels", [16, 64, 256])
def test_accuracy(tile, largest, usual, channels):
    """Errors on random numbers: F(2x2, 3x3) has smaller ones than the direct convolution.

    The largest is in units of rounding of the largest sum of magnitudes, the root mean square in
    units of that of the direct convolution.
    """
    rng = np.random.default_rng(5)
    kernel = rng.standard_normal((64, 3, 3, channels)).astype(np.float32)
    x = rng.standard_normal((1, 12, 12, channels)).astype(np.float32)
    attributes = ConvAttributes((1, 1, 1, 1))
    expected = convolve(x, kernel, None, attributes)
    magnitudes = convolve(abs(x), abs(kernel), None, attributes)
    errors = []
    for operator in (
        fp32_winograd.BY_TILE[tile].create(Convolution(Weight.of(kernel), None, attributes)),
        fp32.CONVOLUTION.create(Convolution(Weight.of(kernel), None, attributes)),
    ):
        operator.reshape(x.shape, shared(1))
        errors.append(run(operator, x, expected.shape, 1) - expected)
    assert abs(errors[0]).max() < largest * EPSILON * magnitudes.max()
    ours, direct = (np.sqrt((error**2).mean()) for error in errors)
    assert ours < usual * direct


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("limits", [UNBOUNDED, (0.0, 6.0)])
def test_nonfinite_inputs_stay_in_their_tiles(tile, limits):
    """NaN stays NaN, infinity stays or becomes NaN; pixels of the same tiles may become NaN."""
    x = np.ones((1, 13, 13, 5), np.float32)
    x[0, 1, 1, 2], x[0, 1, 9, 3], x[0, 9, 1, 4] = np.nan, np.inf, -np.inf
    kernel = np.full((20, 3, 3, 5), 0.125, np.float32)
    attributes = ConvAttributes((1, 1, 1, 1))
    problem = Convolution(Weight.of(kernel), None, attributes, Epilogue(limits=limits))
    operator = fp32_winograd.BY_TILE[tile].create(problem)
    operator.reshape(x.shape, shared(1))
    got = run(operator, x, (1, 13, 13, 20), 1)
    touched = np.zeros((13, 13), bool)
    for y, z in [(1, 1), (1, 9), (9, 1)]:
        for row in range(0, 13, tile):
            for column in range(0, 13, tile):
                near = row - 1 <= y <= row + tile and column - 1 <= z <= column + tile
                touched[row : row + tile, column : column + tile] |= near
    expected = np.clip(convolve(x, kernel, None, attributes), *limits)
    np.testing.assert_allclose(got[0, ~touched], expected[0, ~touched], rtol=1e-5)
    same = np.isclose(got, expected, rtol=1e-5, equal_nan=True)
    assert (same | np.isnan(got)).all()
    assert np.isnan(got[np.isnan(expected)]).all()


@pytest.mark.parametrize("tile", TILES)
def test_numbers_up_to_the_largest_that_are_promised(tile):
    """Inputs and weights of 2**48 do not overflow on the way."""
    rng = np.random.default_rng(6)
    x = (rng.uniform(-1, 1, (1, 8, 8, 64)) * 2.0**48).astype(np.float32)
    kernel = (rng.uniform(-1, 1, (16, 3, 3, 64)) * LARGEST_WEIGHT).astype(np.float32)
    operator = fp32_winograd.BY_TILE[tile].create(
        Convolution(Weight.of(kernel), None, ConvAttributes())
    )
    operator.reshape(x.shape, shared(1))
    check_operator(operator, x, kernel, None, ConvAttributes(), Epilogue(), 1)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_that_are_too_large_are_multiplied_directly(weight):
    kernel = np.ones((64, 3, 3, 64), np.float32)
    kernel[3, 1, 2, 5] = weight
    image = 1, 56, 56
    operator = create_convolution(
        Convolution(Weight.of(kernel), None, ConvAttributes(), image=image)
    )
    assert operator.kernel is fp32.CONVOLUTION
    with pytest.raises(UnfitError, match="not finite, or above"):
        fp32_winograd.BY_TILE[4].create(Convolution(Weight.of(kernel), None, ConvAttributes()))
    # In a session of the weights cache too.
    moved = kernel.transpose(0, 3, 1, 2)
    (plan,) = compile_model(one_node("Conv", [[1, 64, 56, 56], moved])).explain()
    assert plan.kernel == "convolution"


def _model(size, **attributes):
    kernel = np.random.default_rng(1).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    bias = np.linspace(-1, 1, 64, dtype=np.float32)
    return one_node("Conv", [["n", 64, *size], kernel, bias], pads=[1, 1, 1, 1], **attributes)


def test_models_run_winograd_at_changing_batches():
    """An image whose size is known; any batch, an empty one too."""
    model = _model((56, 30))
    program = compile_model(model)
    (plan,) = program.explain()
    assert plan.kernel == "winograd 4x4 convolution"
    for n in (2, 0, 1):
        feeds = feeds_for(model, sizes={"n": n})
        if n:
            check(model, feeds, program=program)
        else:
            (y,) = program.run(feeds).values()
            assert y.shape == (0, 64, 56, 30)


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((56, 56), {"strides": [2, 2]}),
        ((56, 56), {"dilations": [2, 2]}),
        ((3, 3), {}),
    ],
)
def test_direct_convolution_is_selected(size, attributes):
    """Strides, dilations, or too few pixels."""
    (plan,) = compile_model(_model(size, **attributes)).explain()
    assert plan.kernel == "convolution"


def test_sizes_that_change_from_run_to_run():
    """Tiles are chosen by the channels, and every size is computed rightly by them."""
    model = _model(("h", "w"))
    program = compile_model(model)
    (plan,) = program.explain()
    assert "winograd" in plan.kernel
    for height, width in [(40, 40), (1, 1), (3, 50), (17, 5), (40, 40)]:
        check(model, feeds_for(model, sizes={"n": 2, "h": height, "w": width}), program=program)


def test_it_can_be_switched_off():
    model = _model((56, 56))
    feeds = feeds_for(model, sizes={"n": 1})
    results = []
    for winograd in (True, False):
        program = narrowpass.load(model, XnnCpuBackend(winograd=winograd), cache=False)
        (plan,) = program.explain()
        assert ("winograd" in plan.kernel) == winograd
        results += program.run(feeds).values()
    assert (results[0] != results[1]).any()  # rounded otherwise
    np.testing.assert_allclose(*results, rtol=0, atol=1e-4)
    assert XnnCpuBackend().winograd


def test_transformed_weights_have_names_of_their_own(tmp_path):
    """Packed once for both ways; found again by a program that computes in the same way."""
    path = tmp_path / "m.narrow"
    narrowpass.build(_model((56, 56)), "", path)
    for winograd, packs in [(True, 1), (False, 1), (True, 0), (False, 0)]:
        backend = XnnCpuBackend(winograd=winograd)
        with narrowpass.load(path, backend, cache_dir=tmp_path) as program:
            assert program.stats()["weights"]["packs"] == packs
            assert ("winograd" in program.explain()[0].kernel) == winograd


RESNET = {(56, 64): (4, 4), (28, 128): (4, 4), (14, 256): (2, 4), (7, 512): (0, 2)}
"""Tiles for height, width and channels, with AVX-512 and with registers half as long."""


@pytest.mark.parametrize("size", RESNET)
def test_the_choice_follows_sizes(size):
    """Tiles get smaller where weights are many, down to none where reading them takes longest."""
    pixels, channels = size
    attributes = ConvAttributes((1, 1, 1, 1))
    kernel = channels, 3, 3, channels
    for lanes, tile in zip((16, 8), RESNET[size], strict=True):
        assert tile_for(kernel, attributes, (1, pixels, pixels), lanes) == tile
    assert tile_for(kernel, attributes, None, 8) == 0
    assert tile_for((64, 3, 3, 64), attributes, (1, None, None), 8) == 4
    assert tile_for((64, 3, 3, 64), attributes, (1, 2, None), 8) < 4
    assert tile_for((channels, 3, 1, channels), attributes, (1, pixels, pixels), 8) == 0


@pytest.mark.parametrize(
    ("attributes", "tile", "shape", "message"),
    [
        (ConvAttributes(strides=(1, 2)), 2, (1, 4, 4, 4), "no tiles"),
        (ConvAttributes(dilations=(2, 1)), 2, (1, 8, 8, 4), "no tiles"),
        (ConvAttributes((-1, 0, 0, 0)), 2, (1, 4, 4, 4), "padding"),
        (ConvAttributes(), 4, (1, 4, 4, 5), "4 channels got 5"),
        (ConvAttributes(), 4, (1, 2, 4, 4), "kernel window of 3 is larger"),
    ],
)
def test_invalid_convolutions_are_refused(attributes, tile, shape, message):
    kernel = Weight.of(np.ones((16, 3, 3, 4), np.float32))
    with pytest.raises(BackendError, match=message):
        fp32_winograd.BY_TILE[tile].create(Convolution(kernel, None, attributes)).reshape(
            shape, shared(1)
        )
