"""Convolutions in float32 by the plugin's own kernels, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from fp32_kit import (
    CONVOLUTIONS,
    EPILOGUES,
    REFUSED,
    apply_epilogue,
    compare,
    convolve,
    convolve_magnitudes,
    run,
    valid_image_size,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xnn_kit import check, compile_model, feeds_for, one_node

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.runtime.pool import shared

pytestmark = pytest.mark.usefixtures("fp32_code")


def check_operator(operator, x, kernel, bias, attributes, epilogue, threads, residual=None):
    """Compare the output of an operator with float64."""
    expected = convolve(x, kernel, bias, attributes)
    magnitudes = convolve_magnitudes(x, kernel, bias, attributes)
    if residual is not None:
        magnitudes = magnitudes + abs(residual)
    got = run(operator, x, expected.shape, threads, residual)
    compare(got, apply_epilogue(expected, epilogue, residual), magnitudes, kernel[0].size + 2)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    **CONVOLUTIONS,
    outputs=st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 50, 64, 65, 80, 96, 111, 130]),
    epilogue=EPILOGUES,
)
def test_convolutions(
    seed, batch, size, kernel_shape, strides, dilations, pads, inputs, outputs, groups, epilogue,
    has_bias, threads,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads, strides, dilations, groups)
    size = valid_image_size(size, kernel_shape, attributes)
    x = rng.standard_normal((batch, *size, inputs * groups)).astype(np.float32)
    kernel = rng.standard_normal((outputs * groups, *kernel_shape, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs * groups).astype(np.float32) if has_bias else None
    stored = None if bias is None else Weight.of(bias)
    operator = fp32.CONVOLUTION.create(Convolution(Weight.of(kernel), stored, attributes, epilogue))
    out = operator.reshape(x.shape, shared(threads))
    residual = None
    if epilogue.residual:
        residual = rng.standard_normal((batch, *out, outputs * groups)).astype(np.float32)
    check_operator(operator, x, kernel, bias, attributes, epilogue, threads, residual)


def test_long_accumulations_are_split_along_k():
    """At and inside the rows of the kernel; the residual lies where the result does."""
    rng = np.random.default_rng(4)
    for kernel_shape, inputs in [((3, 3), 100), ((2, 1), 801), ((1, 1), 1200)]:
        kernel = rng.standard_normal((70, *kernel_shape, inputs)).astype(np.float32)
        x = rng.standard_normal((1, 5, 6, inputs)).astype(np.float32)
        epilogue = Epilogue("silu", residual="before")
        operator = fp32.CONVOLUTION.create(
            Convolution(Weight.of(kernel), None, ConvAttributes(), epilogue)
        )
        out = operator.reshape(x.shape, shared(1))
        assert operator.params.depth < kernel[0].size
        residual = rng.standard_normal((1, *out, 70)).astype(np.float32)
        check_operator(operator, x, kernel, None, ConvAttributes(), epilogue, 1, residual)
        got = run(operator, x, residual.shape, 1, residual, in_place=True)
        np.testing.assert_array_equal(got, run(operator, x, residual.shape, 1, residual))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1)])
def test_row_tiles_and_column_parts(threads, pads):
    rng = np.random.default_rng(3)
    kernel = rng.standard_normal((40, 3, 3, 64)).astype(np.float32)
    x = rng.standard_normal((2, 80, 30, 64)).astype(np.float32)
    operator = fp32.CONVOLUTION.create(Convolution(Weight.of(kernel), None, ConvAttributes(pads)))
    operator.reshape(x.shape, shared(threads))
    params, geometry = operator.params, operator.params.geometry
    assert geometry.row_tiles > 1
    assert params.copies == any(pads)
    assert geometry.image.batch * geometry.row_tiles * geometry.parts > threads
    check_operator(operator, x, kernel, None, ConvAttributes(pads), Epilogue(), threads)


@pytest.mark.parametrize("limits", [UNBOUNDED, (0.0, 6.0)])
def test_nonfinite_inputs_reach_their_output_pixels_only(limits):
    """NaN is not clamped; infinities are; each reaches its own output pixels only."""
    x = np.ones((1, 9, 9, 5), np.float32)
    x[0, 1, 1, 2], x[0, 1, 7, 3], x[0, 7, 1, 4] = np.nan, np.inf, -np.inf
    kernel = np.full((20, 3, 3, 5), 0.125, np.float32)
    attributes = ConvAttributes((1, 1, 1, 1))
    problem = Convolution(Weight.of(kernel), None, attributes, Epilogue(limits=limits))
    operator = fp32.CONVOLUTION.create(problem)
    operator.reshape(x.shape, shared(1))
    got = run(operator, x, (1, 9, 9, 20), 1)
    expected = np.clip(convolve(x, kernel, None, attributes), *limits)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got).sum() == 9 * 20


MODELS = {
    "pixels": ((1, 1), {}),
    "pixels with strides": ((1, 1), {"strides": [2, 3]}),
    "pixels with pads": ((1, 1), {"pads": [1, 0, 2, 1]}),
    "3x3": ((3, 3), {"pads": [1, 1, 1, 1]}),
    "3x3 with strides": ((3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "groups": ((2, 3), {"group": 2, "dilations": [2, 1]}),
    "groups of pixels": ((1, 1), {"group": 2}),
    "lines": ((3,), {"pads": [1, 1]}),
    "points of lines": ((1,), {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_run_our_kernels_at_changing_sizes(name):
    """Sizes that change from run to run, an empty batch among them."""
    kernel_shape, attributes = MODELS[name]
    kernel = np.random.default_rng(1).standard_normal((18, 8, *kernel_shape)).astype(np.float32)
    kernel = kernel[:, : 8 // attributes.get("group", 1)]
    bias = np.linspace(-1, 1, 18, dtype=np.float32)
    image = ["n", 8, *["h", "w"][: len(kernel_shape)]]
    model = one_node("Conv", [image, kernel, bias], **attributes)
    program = compile_model(model)
    (plan,) = program.explain()
    kernels = dict.fromkeys(("pixels", "points of lines"), "fully connected")
    kernels["3x3"] = "winograd 4x4 convolution"
    assert plan.kernel == kernels.get(name, "convolution")
    for n, h, w in [(1, 7, 9), (3, 12, 5), (0, 7, 9), (2, 7, 9)]:
        feeds = feeds_for(model, sizes={"n": n, "h": h, "w": w})
        if n:
            check(model, feeds, program=program)
        else:
            (y,) = program.run(feeds).values()
            assert y.shape[:2] == (0, 18)


def test_the_choice_follows_the_processor(monkeypatch):
    model = one_node("Conv", [[1, 8, 5, 5], np.ones((8, 8, 1, 1), np.float32)])
    monkeypatch.setitem(target.OVERRIDES, "fp32_lanes", 0)
    (plan,) = check(model).explain()
    assert plan.kernel == "xnn convolution"


@pytest.mark.parametrize(("attributes", "shape", "message"), REFUSED)
def test_invalid_convolutions_are_refused(attributes, shape, message):
    kernel = Weight.of(np.ones((16, 3, 3, 4), np.float32))
    with pytest.raises(BackendError, match=message):
        fp32.CONVOLUTION.create(Convolution(kernel, None, attributes)).reshape(shape, shared(1))
