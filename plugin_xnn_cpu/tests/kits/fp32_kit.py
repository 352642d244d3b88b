"""Shared by the tests of float32 kernels, with float32 or narrower weights."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native.problems import epilogue as epilogues
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

GUARD = 64
EPSILON = 2.0**-24
"""Half of the distance between 1 and the next float32: what rounding is off by, at most."""

LIMITS = st.sampled_from([UNBOUNDED, UNBOUNDED, (0.0, np.inf), (0.0, 6.0), (-0.1, 0.3)])
RESIDUALS = st.sampled_from(["", "", "before", "after"])
EPILOGUES = st.one_of(
    st.builds(epilogues.Epilogue, st.just("clamp"), LIMITS, RESIDUALS),
    st.builds(epilogues.Epilogue, st.sampled_from(epilogues.FUNCTIONS[1:]), residual=RESIDUALS),
)


STEPS = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
CONVOLUTIONS = {
    "seed": st.integers(0, 10**6),
    "batch": st.integers(1, 3),
    "size": st.tuples(st.integers(1, 14), st.integers(1, 14)),
    "kernel_shape": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "strides": STEPS,
    "dilations": STEPS,
    "pads": st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 3)] * 4)),
    "inputs": st.sampled_from([1, 2, 3, 4, 7, 8, 16, 33]),
    "groups": st.sampled_from([1, 1, 1, 2, 3]),
    "has_bias": st.booleans(),
    "threads": st.sampled_from([1, 2]),
}
"""Strategies of convolutions; `inputs` are the channels of a group."""

REFUSED = [
    (ConvAttributes(groups=3), (1, 4, 4, 12), "cannot form 3 groups"),
    (ConvAttributes((-1, 0, 0, 0)), (1, 4, 4, 4), "padding"),
    (ConvAttributes(strides=(0, 1)), (1, 4, 4, 4), "stride"),
    (ConvAttributes(), (1, 4, 4, 5), "4 channels got 5"),
    (ConvAttributes(), (1, 2, 4, 4), "kernel window of 3 is larger"),
    (ConvAttributes(), (1, 4, 1 << 30, 4), "too many"),
]
"""Attributes and images that a kernel of [16, 3, 3, 4] refuses, and words of the error."""


def valid_image_size(size, kernel_shape, attributes):
    """Return `size`, enlarged where the dilated kernel would not fit the padded image."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, attributes.dilations, strict=True)]
    padding = [a + b for a, b in zip(attributes.pads[:2], attributes.pads[2:], strict=True)]
    return [max(s, r - p, 1) for s, r, p in zip(size, reach, padding, strict=True)]


def convolve(x, kernel, bias, attributes):
    """Compute a convolution with a kernel [O, KH, KW, C / groups] in float64."""
    outputs, height, width, per_group = kernel.shape
    top, left, bottom, right = attributes.pads
    wide = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    down, along = attributes.dilations
    reach = (height - 1) * down + 1, (width - 1) * along + 1
    seen = np.lib.stride_tricks.sliding_window_view(wide, reach, (1, 2))
    seen = seen[:, :: attributes.strides[0], :: attributes.strides[1], :, ::down, ::along]
    n, h, w = seen.shape[:3]
    groups = attributes.groups
    seen = seen.reshape(n, h, w, groups, per_group, height, width)
    weights = kernel.astype(np.float64).reshape(groups, outputs // groups, height, width, -1)
    result = np.einsum("nhwgcab,goabc->nhwgo", seen, weights, optimize=True)
    return result.reshape(n, h, w, outputs) + (0 if bias is None else bias.astype(np.float64))


def convolve_magnitudes(x, kernel, bias, attributes):
    """Compute the convolution of magnitudes: the sum of |x w| and |b| of each output."""
    return convolve(abs(x), abs(kernel), None if bias is None else abs(bias), attributes)


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


FUNCTIONS = {
    "gelu": lambda x: x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2)),
    "tanh-gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(np.minimum(-x, 700))),
    "hard-swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
"""In float64."""

STEEPEST = 1.2
"""The largest slope of these functions: how much an error of the argument can grow."""


def apply_epilogue(accumulators, epilogue, residual=None):
    """Apply an epilogue to accumulators, in float64."""
    function = FUNCTIONS.get(epilogue.function, lambda x: np.clip(x, *epilogue.limits))
    if epilogue.residual == "before":
        return function(accumulators + residual)
    if epilogue.residual == "after":
        return function(accumulators) + residual
    return function(accumulators)


def compare(got, expected, magnitudes, terms):
    """Assert that dot products of `terms` float32 elements are within their rounding errors.

    Each multiply-add and each addition is off by at most `EPSILON` of the sum of magnitudes; the
    function of the epilogue adds errors relative to its result.
    """
    allowed = STEEPEST * (terms + 4) * EPSILON * magnitudes + 16 * EPSILON * np.abs(expected)
    wrong = np.abs(got - expected) > allowed
    assert not wrong.any(), (got[wrong][:3], expected[wrong][:3], allowed[wrong][:3])
