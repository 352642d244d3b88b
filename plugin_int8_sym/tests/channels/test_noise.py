"""The estimated noise of a matmul, against matmuls of rounded numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from equalize_kit import numbers

from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.search import ReaderNoise, search_factors
from narrowpass_int8_sym.channels.statistics import ChannelStatistics, SplitStatistics

CLOSE = 1.0
"""dB: rounding errors of the largest elements and of edges of the range are not uniform."""


def seen(*halves):
    return SplitStatistics(
        tuple(
            ChannelStatistics(
                len(half),
                np.minimum(half.min(axis=0), 0).astype(np.float64),
                np.maximum(half.max(axis=0), 0).astype(np.float64),
                half.mean(axis=0, dtype=np.float64),
                (half.astype(np.float64) ** 2).mean(axis=0),
            )
            for half in halves
        )
    )


def sink(weight):
    value = ir.Value(name="w", const_value=ir.Tensor(weight))
    return ChannelConstant(ir.Node("", "MatMul", [ir.Value(name="x"), value]), 1)


def rounded(array, scale, low=-128):
    return np.clip(np.rint(array / scale), low, 127 if low == -127 else 127 + 256) * scale


def measured(x, weight, factors):
    """Return noise / signal of a matmul of int8 operands, in float64."""
    right = x.astype(np.float64) @ weight
    thin, thick = x / factors, weight * factors[:, None]
    step = (max(thin.max(), 0) - min(thin.min(), 0)) / 255
    got = rounded(thin, step, -1024) @ rounded(thick, np.abs(thick).max(axis=0) / 127, -127)
    shares = np.sum((got - right) ** 2, axis=0) / np.sum(right**2, axis=0)
    return np.exp(np.log(shares).mean())


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_the_estimate_equals_measured_noise(spread):
    factors = np.exp(spread * numbers(64, seed=3))
    x, weight = numbers(4096, 64) * factors, numbers(64, 48, seed=1)
    for divided in (np.ones(64), np.sqrt(factors), factors):
        reading = ReaderNoise.of(sink(weight), seen(x))
        estimate = reading.noise(reading.seen.all, divided)
        assert abs(10 * np.log10(estimate / measured(x, weight, divided))) < CLOSE


def test_the_chosen_factors_lower_the_noise_on_other_data():
    factors = np.exp(1.5 * numbers(64, seed=3))
    x, weight = numbers(2000, 64) * factors, numbers(64, 48, seed=1)
    choice = search_factors([ReaderNoise.of(sink(weight), seen(x[:500], x[500:1000]))], 0.02)
    assert choice.after < choice.before
    fresh = x[1000:]
    assert measured(fresh, weight, choice.factors) < 0.5 * measured(fresh, weight, np.ones(64))


def test_extremes_that_say_nothing_of_other_data_change_nothing():
    """One element of each half is large, in another channel: factors of one harm the other."""
    halves = numbers(200, 64), numbers(200, 64, seed=1)
    for number, half in enumerate(halves):
        for channel in range(32):
            half[channel, channel + 32 * number] *= 30
    weight = np.ones((64, 48), np.float32)
    choice = search_factors([ReaderNoise.of(sink(weight), seen(*halves))], 0.02)
    # Without the other half, all of the differences would be taken.
    alone = search_factors([ReaderNoise.of(sink(weight), seen(halves[0]))], 0.02)
    assert np.ptp(np.log(choice.factors)) < 0.5 * np.ptp(np.log(alone.factors))
