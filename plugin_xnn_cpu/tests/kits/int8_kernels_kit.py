"""Shared by the tests of the plugin's own int8 kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import kernels, target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.int8_matmul import rows_to_int8
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

CODES = {
    "plain K2": ("plain", int8.PAIRS),
    "avx2 K2": ("avx2", int8.PAIRS),
    "vnni K4": ("avx512vnni", int8.VNNI),
    "amx K4": ("best", int8.AMX),
}
"""Instruction set and packing; AVX2 that the processor lacks runs as plain C. K-groups of 4 are for
processors with VNNI."""
GUARD = 64


@pytest.fixture(autouse=True, params=CODES)
def code(request, monkeypatch):
    """Run a test with each entry of `CODES`."""
    level, layout = CODES[request.param]
    lib = extension().lib
    if layout is int8.VNNI and lib.np_isa() < lib.NP_TARGET_AVX512VNNI:
        pytest.skip("no AVX-512 with VNNI")
    if layout is int8.AMX and lib.np_isa() < lib.NP_TARGET_AVX512AMX:
        pytest.skip("no AMX")
    monkeypatch.setattr(kernels, "TARGET", level)
    monkeypatch.setitem(target.OVERRIDES, "int8_group", layout.group)
    return request.param


def run(operator, x, shape, dtype, threads):
    """Run an operator on x; bytes around the result must stay as they are."""
    entries = [Entry(operator.call, (0,), 1, operator, operator.params, True, "int8")]
    return run_tape(entries, operator, x, shape, dtype, threads)


def run_rows(operator, x, shape, threads):
    """Run a matmul on float32 rows with dynamic per-token quantization."""
    params = rows_to_int8(*x.shape)
    quantized = aligned(params.rows * params.row_bytes)
    quantized[...] = 170
    entries = [
        Entry("NP_INT8_ROWS", (0,), 2, None, params, True, "rows"),
        Entry(operator.call, (2,), 1, operator, operator.params, True, "int8"),
    ]
    return run_tape(entries, operator, x, shape, np.float32, threads, quantized)


def run_tape(entries, operator, x, shape, dtype, threads, *others):
    tape = Tape(entries, 2 + len(others))
    for number, other in enumerate(others, 2):
        tape.bind(number, other)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD, 85, np.uint8)
    scratch = aligned(operator.workspace)
    scratch[...] = 170  # nothing may depend on what was there
    tape.bind_workspace(scratch, 0)
    tape.bind(0, np.ascontiguousarray(x))
    tape.bind(1, memory, GUARD)
    tape.run(shared(threads))
    assert (memory[:GUARD] == 85).all()
    assert (memory[-GUARD:] == 85).all()
    return memory[GUARD:-GUARD].view(dtype).reshape(shape)


def requantize(accumulators, scales, requantized):
    """Return rint(float32(accumulator) · scale) + zero point, clamped."""
    assert np.abs(accumulators).max(initial=0) < 2**31
    factors = np.float32(requantized.input.scale) * scales / np.float32(requantized.output.scale)
    x = np.rint(accumulators.astype(np.int32).astype(np.float32) * factors)
    return np.clip(
        x.astype(np.float64) + requantized.output.zero_point, *requantized.limits
    ).astype(np.int8)


def im2col_view(x, kernel_shape, movement, zero):
    """Return x - zero as [N, H, W, KH, KW, C] of int64."""
    top, left, bottom, right = movement.pads
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (top, bottom), (left, right), (0, 0)))
    down, along = movement.dilations
    reach = (kernel_shape[0] - 1) * down + 1, (kernel_shape[1] - 1) * along + 1
    views = np.lib.stride_tricks.sliding_window_view(wide, reach, (1, 2))
    views = views[:, :: movement.strides[0], :: movement.strides[1], :, ::down, ::along]
    return views.transpose(0, 1, 2, 4, 5, 3)


def convolve(x, kernel, bias, movement, zero):
    """Compute the int64 accumulators of a convolution with a kernel [O, KH, KW, C / groups]."""
    outputs, height, width, per_group = kernel.shape
    seen = im2col_view(x, (height, width), movement, zero)
    n, h, w = seen.shape[:3]
    groups = movement.groups
    seen = seen.reshape(n, h, w, height, width, groups, per_group)
    weights = kernel.astype(np.int64).reshape(groups, outputs // groups, height, width, per_group)
    accumulators = np.einsum("nhwabgc,goabc->nhwgo", seen, weights, optimize=True)
    return accumulators.reshape(n, h, w, outputs) + (0 if bias is None else bias.astype(np.int64))


def bytes_of(rng, shape, extreme, low=-128):
    if extreme:
        return rng.choice(np.array([low, 127], np.int8), shape)
    return rng.integers(low, 128, shape).astype(np.int8)


def scales_of(rng, count, depth):
    """Return scales with which most results are inside the range, some beyond."""
    return (rng.uniform(0.2, 3, count) / np.sqrt(depth) / 100).astype(np.float32)


REQUANTIZED = st.builds(
    lambda z, o, limits: Requantized(
        Quantization(0.5, z), Quantization(0.25, o), (min(limits), max(limits))
    ),
    st.integers(-128, 127),
    st.integers(-128, 127),
    st.sampled_from([(-128, 127), (-128, 127), (-100, 50), (0, 127), (-128, -127)]),
)
STEPS = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
CHANNELS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 48, 64, 65, 99])
