"""What the tests of our kernels of float32 share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.epilogue import FUNCTIONS as NAMES
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import UNBOUNDED, fp32_choice
from narrowpass_xnn_cpu.native.pool import shared
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned

GUARD = 64
EPSILON = 2.0**-24
"""Half of the distance between 1 and the next float32: what rounding is off by, at most."""

LIMITS = st.sampled_from([UNBOUNDED, UNBOUNDED, (0.0, np.inf), (0.0, 6.0), (-0.1, 0.3)])
RESIDUALS = st.sampled_from(["", "", "before", "after"])
EPILOGUES = st.one_of(
    st.builds(Epilogue, st.just("clamp"), LIMITS, RESIDUALS),
    st.builds(Epilogue, st.sampled_from(NAMES[1:]), residual=RESIDUALS),
)


@pytest.fixture(autouse=True, params=["plain", "avx2", "best"])
def code(request, monkeypatch):
    """Run a test with each of the codes that this processor has, whatever it would choose."""
    monkeypatch.setattr(kernels, "TARGET", request.param)
    monkeypatch.setattr(fp32_choice, "convolutions_are_ours", lambda: True)
    monkeypatch.setattr(fp32_choice, "products_are_ours", lambda: True)
    return request.param


def run(operator, x, shape, threads, residual=None, in_place=False):
    """Run an operator on x; numbers around the result must stay as they are."""
    inputs = (0,) if residual is None else (0, 1)
    tape = Tape([Entry(operator.call, inputs, 2, operator, operator.params, True, "fp32")], 3)
    size = int(np.prod(shape))
    memory = np.full(size + 2 * GUARD, 85, np.float32)
    scratch = aligned(operator.workspace)
    scratch[...] = 255  # NaN: nothing may depend on what was there
    tape.bind_workspace(scratch, 0)
    x = np.ascontiguousarray(x)
    tape.bind(0, x)
    if in_place:
        memory[GUARD:-GUARD] = residual.reshape(-1)
        tape.bind(1, memory, 4 * GUARD)
    elif residual is not None:
        residual = np.ascontiguousarray(residual)
        tape.bind(1, residual)
    tape.bind(2, memory, 4 * GUARD)
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


FUNCTIONS = {
    "gelu": lambda x: x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2)),
    "tanh-gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hard-swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
"""In float64."""

STEEPEST = 1.2
"""No function is steeper: the most that an error of its argument grows."""


def ended(sums, epilogue, residual=None):
    """Give what becomes of sums of float64."""
    function = FUNCTIONS.get(epilogue.function, lambda x: np.clip(x, *epilogue.limits))
    if epilogue.residual == "before":
        return function(sums + residual)
    if epilogue.residual == "after":
        return function(sums) + residual
    return function(sums)


def compare(got, expected, magnitudes, terms):
    """Assert that sums of `terms` products of float32 are as near as these can be.

    Each of the roundings, of a product with a sum or of a sum, is off by `EPSILON` of the sum of
    magnitudes at most; the function behind adds some of its own, of its result.
    """
    allowed = STEEPEST * (terms + 4) * EPSILON * magnitudes + 16 * EPSILON * np.abs(expected)
    wrong = np.abs(got - expected) > allowed
    assert not wrong.any(), (got[wrong][:3], expected[wrong][:3], allowed[wrong][:3])
