"""Depthwise convolutions of float32 by kernels of ours."""

from __future__ import annotations

import numpy as np
import pytest
from fp32_kit import EPILOGUES, apply_epilogue, compare, convolve, run, valid_image_size
from hypothesis import given, settings
from hypothesis import strategies as st
from xnn_kit import check, compile_model, feeds_for, one_node

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32_depthwise
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.runtime.pool import shared

pytestmark = pytest.mark.usefixtures("fp32_code")

# Kernel widths 3, 5, 7, 9 and 11 have specialized code; others are composed of these.
KERNEL_SHAPES = st.one_of(
    st.sampled_from([(3, 3), (5, 5), (7, 7), (9, 9), (11, 11), (1, 11), (2, 7), (11, 1)]),
    st.tuples(st.integers(1, 7), st.integers(1, 14)),
)
STRIDES = st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 2), (1, 2), (2, 1), (3, 4)])
DILATIONS = st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 2), (1, 3)])
PADS = st.one_of(
    st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (2, 2, 2, 2)]),
    st.tuples(*[st.integers(0, 9)] * 4),
)
SIZES = st.tuples(st.integers(1, 14), st.integers(1, 37))
CHANNELS = st.sampled_from([1, 3, 4, 7, 8, 15, 16, 17, 24, 32, 33, 64, 72, 100, 130])


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def stored(array):
    return None if array is None else Weight.of(array)


def as_grouped(kernel):
    """Return [KH, KW, C] as [C, KH, KW, 1]."""
    return kernel.transpose(2, 0, 1)[..., None]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    size=SIZES,
    kernel_shape=KERNEL_SHAPES,
    strides=STRIDES,
    dilations=DILATIONS,
    pads=PADS,
    channels=CHANNELS,
    epilogue=EPILOGUES,
    has_bias=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_depthwise_convolutions(
    seed, batch, size, kernel_shape, strides, dilations, pads, channels, epilogue, has_bias, threads
):
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads, strides, dilations, channels)
    x = normal(rng, batch, *valid_image_size(size, kernel_shape, attributes), channels)
    kernel = normal(rng, *kernel_shape, channels)
    bias = normal(rng, channels) if has_bias else None
    operator = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), stored(bias), attributes, epilogue, depthwise=True)
    )
    out = operator.reshape(x.shape, shared(threads))
    residual = normal(rng, batch, *out, channels) if epilogue.residual else None
    expected = convolve(x, as_grouped(kernel), bias, attributes)
    magnitudes = convolve(
        abs(x), as_grouped(abs(kernel)), None if bias is None else abs(bias), attributes
    )
    if residual is not None:
        magnitudes = magnitudes + abs(residual)
    got = run(operator, x, expected.shape, threads, residual)
    compare(
        got,
        apply_epilogue(expected, epilogue, residual),
        magnitudes,
        kernel_shape[0] * kernel_shape[1] + 2,
    )
    if epilogue.residual == "before":
        again = run(operator, x, expected.shape, threads, residual, in_place=True)
        np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize(
    ("shape", "divided"), [((1, 64, 9, 40), "row_tiles"), ((1, 7, 7, 200), "parts")]
)
def test_images_are_divided_among_threads(shape, divided):
    rng = np.random.default_rng(2)
    kernel = normal(rng, 3, 3, shape[3])
    attributes = ConvAttributes((1, 1, 1, 1), groups=shape[3])
    operator = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), None, attributes, depthwise=True)
    )
    operator.reshape(shape, shared(2))
    assert getattr(operator.params, divided) > 2
    x = normal(rng, *shape)
    expected = convolve(x, as_grouped(kernel), None, attributes)
    magnitudes = convolve(abs(x), as_grouped(abs(kernel)), None, attributes)
    compare(run(operator, x, expected.shape, 2), expected, magnitudes, 10)


@pytest.mark.parametrize("limits", [UNBOUNDED, (0.0, 6.0)])
@pytest.mark.parametrize("channels", [16, 5])
def test_nonfinite_inputs_reach_their_output_pixels_only(limits, channels):
    """NaN is not clamped; infinities are; each reaches its own output pixels only."""
    x = np.ones((1, 12, 12, channels), np.float32)
    x[0, 1, 1, 2], x[0, 1, 7, 3], x[0, 7, 1, 4] = np.nan, np.inf, -np.inf
    kernel = np.full((3, 3, channels), 0.125, np.float32)
    attributes = ConvAttributes((1, 1, 1, 1), groups=channels)
    epilogue = Epilogue(limits=limits)
    operator = fp32_depthwise.DEPTHWISE.create(
        Convolution(Weight.of(kernel), None, attributes, epilogue, depthwise=True)
    )
    operator.reshape(x.shape, shared(1))
    got = run(operator, x, x.shape, 1)
    expected = np.clip(convolve(x, as_grouped(kernel), None, attributes), *limits)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got).sum() == 9


MODELS = {
    "squares": ((3, 3), {"pads": [1, 1, 1, 1]}),
    "wide squares": ((7, 7), {"pads": [3, 3, 3, 3]}),
    "wide squares apart": ((9, 9), {"strides": [2, 2], "pads": [4, 4, 4, 4]}),
    "wider than all pixels": ((1, 31), {"pads": [0, 15, 0, 15]}),
    "squares apart": ((5, 5), {"strides": [2, 2], "pads": [1, 1, 2, 2]}),
    "spread": ((3, 2), {"dilations": [2, 3]}),
    "lines": ((3,), {"pads": [1, 1]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_run_our_kernel_at_changing_sizes(name):
    """Sizes that change from run to run, an empty batch among them."""
    kernel_shape, attributes = MODELS[name]
    kernel = normal(np.random.default_rng(1), 18, 1, *kernel_shape)
    bias = np.linspace(-1, 1, 18, dtype=np.float32)
    image = ["n", 18, *["h", "w"][: len(kernel_shape)]]
    model = one_node("Conv", [image, kernel, bias], group=18, **attributes)
    program = compile_model(model)
    (plan,) = program.explain()
    assert plan.kernel == "depthwise convolution"
    for n, h, w in [(1, 7, 9), (3, 12, 5), (0, 7, 9), (2, 7, 9)]:
        feeds = feeds_for(model, sizes={"n": n, "h": h, "w": w})
        if n:
            check(model, feeds, program=program)
        else:
            (y,) = program.run(feeds).values()
            assert y.shape[:2] == (0, 18)


def test_several_outputs_of_a_channel_are_for_xnnpack_or_groups():
    """Groups of our convolution, which rounds as FMA does, where there is none."""
    kernel = np.ones((16, 1, 3, 3), np.float32)
    model = one_node("Conv", [[1, 8, 5, 5], kernel], group=8)
    (plan,) = check(model).explain()
    emulated = target.current().emulates_fma
    assert plan.kernel == ("convolution" if emulated else "xnn depthwise convolution")


@pytest.mark.parametrize(
    ("attributes", "shape", "message"),
    [
        (ConvAttributes(groups=3), (1, 4, 4, 4), "not 3 groups"),
        (ConvAttributes((-1, 0, 0, 0), groups=4), (1, 4, 4, 4), "padding"),
        (ConvAttributes(strides=(0, 1), groups=4), (1, 4, 4, 4), "stride"),
        (ConvAttributes(groups=4), (1, 4, 4, 5), "4 channels got 5"),
        (ConvAttributes(groups=4), (1, 2, 4, 4), "kernel window of 3 is larger"),
    ],
)
def test_invalid_convolutions_are_refused(attributes, shape, message):
    kernel = Weight.of(np.ones((3, 3, 4), np.float32))
    with pytest.raises(BackendError, match=message):
        fp32_depthwise.DEPTHWISE.create(
            Convolution(kernel, None, attributes, depthwise=True)
        ).reshape(shape, shared(1))
