"""Convolutions of float32 by kernels of ours, against sums of float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xnn_kit import TOLERANCE, check, compile_model, feeds_for, one_node

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import UNBOUNDED, Movement, fp32_choice
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import TiledConvolution
from narrowpass_xnn_cpu.native.pool import shared
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned
from narrowpass_xnn_cpu.weights.weight import Weight

pytestmark = pytest.mark.once

GUARD = 64
STEPS = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])


@pytest.fixture(autouse=True, params=["plain", "avx2"])
def code(request, monkeypatch):
    """Run a test with each of the codes that this processor has, whatever it would choose."""
    monkeypatch.setattr(kernels, "TARGET", request.param)
    monkeypatch.setattr(fp32_choice, "ours", lambda: True)
    return request.param


def run(operator, x, shape, threads):
    """Run an operator on x; numbers around the result must stay as they are."""
    tape = Tape([Entry(operator.call, (0,), 1, operator, operator.params, True, "fp32")], 2)
    size = int(np.prod(shape))
    memory = np.full(size + 2 * GUARD, 85, np.float32)
    scratch = aligned(operator.workspace)
    scratch[...] = 255  # NaN: nothing may depend on what was there
    tape.bind_workspace(scratch, 0)
    tape.bind(0, np.ascontiguousarray(x))
    tape.bind(1, memory, 4 * GUARD)
    tape.run(shared(threads))
    assert (memory[:GUARD] == 85).all()
    assert (memory[-GUARD:] == 85).all()
    return memory[GUARD:-GUARD].reshape(shape)


def convolve(x, kernel, bias, movement):
    """Give the sums of a convolution with [O, KH, KW, C / groups], in float64."""
    outputs, height, width, per_group = kernel.shape
    top, left, bottom, right = movement.pads
    wide = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    down, along = movement.dilations
    reach = (height - 1) * down + 1, (width - 1) * along + 1
    seen = np.lib.stride_tricks.sliding_window_view(wide, reach, (1, 2))
    seen = seen[:, :: movement.strides[0], :: movement.strides[1], :, ::down, ::along]
    n, h, w = seen.shape[:3]
    groups = movement.groups
    seen = seen.reshape(n, h, w, groups, per_group, height, width)
    weights = kernel.astype(np.float64).reshape(groups, outputs // groups, height, width, -1)
    sums = np.einsum("nhwgcab,goabc->nhwgo", seen, weights, optimize=True)
    return sums.reshape(n, h, w, outputs) + (0 if bias is None else bias.astype(np.float64))


def compare(got, sums, limits=UNBOUNDED):
    """Assert that clamped sums differ by little, as against the largest of them."""
    allowed = TOLERANCE * np.abs(sums).max()
    np.testing.assert_allclose(got, np.clip(sums, *limits), rtol=0, atol=allowed)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=STEPS,
    dilations=STEPS,
    pads=st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 3)] * 4)),
    inputs=st.sampled_from([1, 2, 3, 4, 7, 8, 16, 33]),
    outputs=st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 48]),
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    limits=st.sampled_from([UNBOUNDED, UNBOUNDED, (0.0, np.inf), (0.0, 6.0), (-0.1, 0.3)]),
    has_bias=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_convolutions(
    seed, batch, size, window, strides, dilations, pads, inputs, outputs, groups, limits, has_bias,
    threads,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    movement = Movement(pads, strides, dilations, groups, limits)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    size = [
        max(s, r - pads[i] - pads[i + 2], 1)
        for i, (s, r) in enumerate(zip(size, reach, strict=True))
    ]
    x = rng.standard_normal((batch, *size, inputs * groups)).astype(np.float32)
    kernel = rng.standard_normal((outputs * groups, *window, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs * groups).astype(np.float32) if has_bias else None
    operator = TiledConvolution(
        Weight.of(kernel), None if bias is None else Weight.of(bias), movement
    )
    expected = convolve(x, kernel, bias, movement)
    assert operator.reshape(x.shape, shared(threads)) == expected.shape[1:3]
    compare(run(operator, x, expected.shape, threads), expected, limits)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1)])
def test_bands_and_parts(threads, pads):
    rng = np.random.default_rng(3)
    kernel = rng.standard_normal((40, 3, 3, 64)).astype(np.float32)
    x = rng.standard_normal((2, 40, 30, 64)).astype(np.float32)
    operator = TiledConvolution(Weight.of(kernel), None, Movement(pads))
    operator.reshape(x.shape, shared(threads))
    params = operator.params
    assert params.bands > 1
    assert params.copies == any(pads)
    assert params.batch * params.bands * params.parts > threads
    expected = convolve(x, kernel, None, Movement(pads))
    compare(run(operator, x, expected.shape, threads), expected)


@pytest.mark.parametrize("limits", [UNBOUNDED, (0.0, 6.0)])
def test_what_is_not_finite_stays(limits):
    """NaN is not clamped; infinities are; each comes where its window is, and nowhere else."""
    x = np.ones((1, 9, 9, 5), np.float32)
    x[0, 1, 1, 2], x[0, 1, 7, 3], x[0, 7, 1, 4] = np.nan, np.inf, -np.inf
    kernel = np.full((20, 3, 3, 5), 0.125, np.float32)
    movement = Movement((1, 1, 1, 1), limits=limits)
    operator = TiledConvolution(Weight.of(kernel), None, movement)
    operator.reshape(x.shape, shared(1))
    got = run(operator, x, (1, 9, 9, 20), 1)
    expected = np.clip(convolve(x, kernel, None, movement), *limits)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got).sum() == 9 * 20


MODELS = {
    "pixels": ((1, 1), {}),
    "pixels apart": ((1, 1), {"strides": [2, 3]}),
    "pixels with pads": ((1, 1), {"pads": [1, 0, 2, 1]}),
    "windows": ((3, 3), {"pads": [1, 1, 1, 1]}),
    "windows apart": ((3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "groups": ((2, 3), {"group": 2, "dilations": [2, 1]}),
    "groups of pixels": ((1, 1), {"group": 2}),
    "lines": ((3,), {"pads": [1, 1]}),
    "points of lines": ((1,), {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    """Sizes that change from run to run, an empty batch among them."""
    window, attributes = MODELS[name]
    kernel = np.random.default_rng(1).standard_normal((18, 8, *window)).astype(np.float32)
    kernel = kernel[:, : 8 // attributes.get("group", 1)]
    bias = np.linspace(-1, 1, 18, dtype=np.float32)
    image = ["n", 8, *["h", "w"][: len(window)]]
    model = one_node("Conv", [image, kernel, bias], **attributes)
    program = compile_model(model)
    (plan,) = program.explain()
    product = name in ("pixels", "points of lines")
    assert plan.kernel == ("xnn fully connected" if product else "convolution")
    for n, h, w in [(1, 7, 9), (3, 12, 5), (0, 7, 9), (2, 7, 9)]:
        feeds = feeds_for(model, sizes={"n": n, "h": h, "w": w})
        if n:
            check(model, feeds, program=program)
        else:
            (y,) = program.run(feeds).values()
            assert y.shape[:2] == (0, 18)


def test_depthwise_stays():
    model = one_node("Conv", [[1, 8, 5, 5], np.ones((8, 1, 3, 3), np.float32)], group=8)
    (plan,) = check(model).explain()
    assert plan.kernel == "xnn depthwise convolution"


def test_the_choice_follows_the_processor(monkeypatch):
    model = one_node("Conv", [[1, 8, 5, 5], np.ones((8, 8, 1, 1), np.float32)])
    monkeypatch.setattr(fp32_choice, "ours", lambda: False)
    (plan,) = check(model).explain()
    assert plan.kernel == "xnn convolution"


@pytest.mark.parametrize(
    ("movement", "shape", "message"),
    [
        (Movement(groups=3), (1, 4, 4, 12), "cannot form 3 groups"),
        (Movement((-1, 0, 0, 0)), (1, 4, 4, 4), "padding"),
        (Movement(strides=(0, 1)), (1, 4, 4, 4), "stride"),
        (Movement(limits=(1.0, 0.0)), (1, 4, 4, 4), "clamped"),
        (Movement(), (1, 4, 4, 5), "4 channels got 5"),
        (Movement(), (1, 2, 4, 4), "window of 3 is larger"),
        (Movement(), (1, 4, 1 << 30, 4), "too many"),
    ],
)
def test_refusals(movement, shape, message):
    kernel = Weight.of(np.ones((16, 3, 3, 4), np.float32))
    with pytest.raises(BackendError, match=message):
        TiledConvolution(kernel, None, movement).reshape(shape, shared(1))
