"""Reductions, pooling and statistics; oracle: numpy, in float64 where floats are added."""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, FLAT, Cases
from elementwise_cases import numbers
from numpy.lib.stride_tricks import sliding_window_view
from tolerances import ACCUMULATED

from narrowpass.runtime.meters import Counts, Extremes
from narrowpass_xnn_cpu.native import calls, kernels
from narrowpass_xnn_cpu.native.runtime.meter import NativeMeter, scratch_for

CASES = Cases()
LINES = (*EDGES, 255, 256, 257)
"""Sizes around the columns that a part of a reduction along an axis takes, too."""


@CASES.of(
    "NP_POOL",
    channels=EDGES[1:],
    width=(1, 2, 3, 7, 8, 9, 15, 16, 17, 33),
    height=(1, 2, 3, 5),
    taps=((1, 1), (2, 2), (3, 3), (2, 3), (1, 5)),
    stride=(1, 2, 3),
    dilation=(1, 2),
    pad=(0, 1),
    batch=(0, 1, 2),
    maximum=(False, True),
)
def pool(kernel, channels, width, height, taps, stride, dilation, pad, batch, maximum):
    # Pads are smaller than the kernel, as the standard has it: each output pixel has inputs.
    pads = [min(pad, size - 1) if dilation == 1 else 0 for size in taps]
    reach = [(size - 1) * dilation + 1 for size in taps]
    if height + 2 * pads[0] < reach[0] or width + 2 * pads[1] < reach[1]:
        return
    x = kernel.floats(batch, height, width, channels)
    around = ((0, 0), (pads[0],) * 2, (pads[1],) * 2, (0, 0))
    wide = np.pad(x.astype(np.float64), around, constant_values=np.nan)
    seen = sliding_window_view(wide, reach, (1, 2))
    seen = seen[:, ::stride, ::stride, :, ::dilation, ::dilation]
    expected = (np.nanmax if maximum else np.nanmean)(seen, (4, 5)) if batch else seen[..., 0, 0]
    params = kernels.pool(
        x.shape, seen.shape[1:3], taps, (stride,) * 2, (dilation,) * 2, pads, maximum=maximum
    )
    tolerance = 0 if maximum else ACCUMULATED.relative
    kernel.expect(params, [x], expected.astype(np.float32), tolerance)


REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "l1": lambda x, axes: np.abs(x).sum(axes),
    "sum squares": lambda x, axes: (x * x).sum(axes),
    "mean": np.mean,
}


@CASES.of(
    "NP_TYPED_REDUCTION",
    last=EDGES[1:],
    middle=EDGES[1:],
    first=(1, 2, 3),
    axes=((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)),
    name=tuple(REDUCTIONS),
    dtype=kernels.REDUCED_TYPES,
)
def typed_reduction(kernel, last, middle, first, axes, name, dtype):
    compares, is_float = name in ("max", "min"), dtype.startswith("float")
    if not compares and dtype not in ("int32", "int64", "float32", "float64"):
        return
    if name == "mean" and not is_float:
        return
    x = numbers(kernel, dtype, first, middle, last)
    if is_float and name == "prod":
        x = kernel.rng.choice(np.array([-1, 0.5, 2, 1]), x.shape).astype(dtype)
        if x.size > 99:  # powers of two that do not overflow
            x = np.abs(x) ** 0
    wide = x.astype(np.float64) if is_float else x
    with np.errstate(over="ignore"):
        expected = np.asarray(REDUCTIONS[name](wide, axes)).astype(dtype)
    params = kernels.typed_reduction(x.shape, axes, name, dtype)
    tolerance = ACCUMULATED.relative if is_float and not compares else 0
    kernel.expect(params, [x], expected, tolerance)


@CASES.of(
    "NP_ARG_EXTREME", count=EDGES[1:], inner=LINES, outer=(0, 1, 3), least=(0, 1), last=(0, 1)
)
def arg_extreme(kernel, count, inner, outer, least, last):
    x = numbers(kernel, "float32", outer, count, inner)
    found = x[:, ::-1] if last else x
    expected = (np.argmin if least else np.argmax)(found, 1)
    expected = (count - 1 - expected if last else expected).astype(np.int64)
    params = calls.parameters("NP_ARG_EXTREME", (outer, count, inner, least, last))
    kernel.expect(params, [x], expected)


@CASES.of(
    "NP_CUMULATIVE_SUM",
    count=EDGES,
    inner=LINES,
    outer=(0, 1, 3),
    exclusive=(0, 1),
    reverse=(0, 1),
    dtype=("float32", "int32", "int64"),
)
def cumulative_sum(kernel, count, inner, outer, exclusive, reverse, dtype):
    """In numpy's order, and so bit for bit."""
    x = (100 * kernel.floats(outer, count, inner)).astype(dtype)
    turned = x[:, ::-1] if reverse else x
    expected = np.cumsum(turned, 1, dtype)
    if exclusive:
        expected = np.concatenate([np.zeros_like(x[:, :1]), expected[:, :-1]], 1)[:, :count]
    expected = expected[:, ::-1] if reverse else expected
    number = calls.constant("NP_CUMULATIVE_SUM", dtype)
    fields = outer, count, inner, exclusive, reverse, number
    kernel.expect(calls.parameters("NP_CUMULATIVE_SUM", fields), [x], expected)


@CASES.of("NP_OBSERVE", count=FLAT, kind=("extremes", "counts"))
def observe(kernel, count, kind):
    """Oracle: numpy's histogram."""
    x = kernel.floats(count)
    meter = Extremes() if kind == "extremes" else Counts(8, 4, 0.5)
    native, scratch = NativeMeter(), scratch_for([meter], kernel.pool)
    native.begin(meter, scratch)
    kernel.expect(native.params(count), [x], np.zeros(0, np.float32))
    native.end(meter)
    extremes = meter if kind == "extremes" else meter.extremes
    assert (extremes.low, extremes.high) == (x.min(initial=np.inf), x.max(initial=-np.inf))
    if kind == "counts":
        edges = [-np.inf, *np.arange(-1.5, 2, 0.5), np.inf]
        np.testing.assert_array_equal(meter.counts, np.histogram(x, edges)[0])
