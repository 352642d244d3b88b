"""The clipping range with the least Kullback-Leibler divergence from the histogram.

After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017), for clipping ranges with zero at any
position, not only at one end or in the middle. P is the histogram within the range; clipped
elements are added to its outermost bins. Q is P quantized: each level of the quantized type covers
an equal part of the bins, and distributes their unclipped elements evenly over those bins that are
not empty in P. The range with the least divergence KL(P || Q) is chosen. Zeros are left out of
both, as they are exact.

Two conditions exclude degenerate ranges. A range has at least as many bins as there are levels. And
it clips at most 1 % of the elements: in a range with few elements, P and Q both are a single bin. Q
has a tiny amount in all bins, so that no divergence is infinite.
"""

from __future__ import annotations

import numpy as np

from narrowpass_int8_sym.calibration.histogram import Array, CalibrationHistogram

CLIPPED = 0.01
"""The largest share of elements that a range may clip."""

BACKGROUND = 1e-10
"""The amount added to each bin of Q, as a share of all elements."""

_SIDE = 48
"""Candidate positions of each end in one grid, where both ends vary."""

_AT_ONCE = 256
"""Candidate ranges that are evaluated at once; it bounds the memory."""


def clipping_range(histogram: CalibrationHistogram, levels: int) -> tuple[int, int]:
    """Choose the clipping range, in bins.

    Where one end is fixed, or there are up to 48 bins on each side, the search is exhaustive. Else
    a grid of 48 positions of each end is refined around the best.

    Args:
        histogram: with elements that are not zero.
        levels: how many the quantized type has for it; at most the bins.

    Returns:
        The number of bins below zero and above it in the range; of several with the same
        divergence, the widest.
    """
    below, above = (0, histogram.below), (0, histogram.above)
    side = _SIDE if histogram.below and histogram.above else len(histogram.counts) + 1
    while True:
        lows, highs = _positions(*below, side), _positions(*above, side)
        pairs = np.stack(np.meshgrid(lows, highs, indexing="ij"), axis=-1).reshape(-1, 2)
        pairs = pairs[pairs.sum(axis=1) >= levels]
        pairs = pairs[np.argsort(-pairs.sum(axis=1), kind="stable")]
        parts = (pairs[start : start + _AT_ONCE] for start in range(0, len(pairs), _AT_ONCE))
        found = [divergence(histogram, part[:, 0], part[:, 1], levels) for part in parts]
        low, high = map(int, pairs[np.argmin(np.concatenate(found))])
        if max(below[1] - below[0], above[1] - above[0]) < side:
            return low, high
        below = _around(low, below, side)
        above = _around(high, above, side)


def _positions(first: int, last: int, count: int) -> Array:
    """Return evenly spaced integers of an interval, with its ends, the largest first."""
    if last - first < count:
        return np.arange(last, first - 1, -1)
    return np.unique(np.rint(np.linspace(first, last, count)).astype(np.int64))[::-1]


def _around(place: int, interval: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the part of an interval between the grid positions on both sides of one."""
    reach = -(-(interval[1] - interval[0]) // (side - 1))
    return max(place - reach, interval[0]), min(place + reach, interval[1])


def divergence(histogram: CalibrationHistogram, below: Array, above: Array, levels: int) -> Array:
    """Return KL(P || Q) of clipping ranges, in nats.

    It is computed for each level, from prefix sums over the bins.

    Args:
        histogram: with elements that are not zero.
        below: bins of each range below zero; int64 of shape [ranges].
        above: bins of each range above zero; together at least as many as levels, and 2.
        levels: how many equal parts a range has.

    Returns:
        float64 of shape [ranges]; infinity where too much is clipped.
    """
    counts = histogram.counts
    mass, filled = _prefix_sums(counts), _prefix_sums(counts > 0)
    logs = _prefix_sums(_xlogx(counts))
    total = mass[-1]
    first = histogram.below - below
    size = below + above
    last = first + size
    left, right = mass[first], total - mass[last]  # clipped
    inside = total - left - right
    at_first, at_last = counts[first], counts[last - 1]

    bounds = first[:, None] + np.arange(levels + 1) * size[:, None] // levels
    held = np.diff(mass[bounds])
    used = np.diff(filled[bounds])
    used[:, 0] += (left > 0) & (at_first == 0)
    used[:, -1] += (right > 0) & (at_last == 0)
    extra = BACKGROUND * total
    spread = np.log(held / np.maximum(used, 1) + extra)
    spread -= np.log(inside + extra * size)[:, None]
    cross = (held * spread).sum(axis=1) + left * spread[:, 0] + right * spread[:, -1]
    own = logs[last] - logs[first]
    own += _xlogx(at_first + left) - _xlogx(at_first)
    own += _xlogx(at_last + right) - _xlogx(at_last)
    result: Array = np.where(
        left + right <= CLIPPED * total, (own - cross) / total - np.log(total), np.inf
    )
    return result


def _xlogx(x: Array) -> Array:
    result: Array = x * np.log(np.maximum(x, 1))
    return result


def _prefix_sums(values: Array) -> Array:
    """Return the prefix sums of n values, from the empty one on: n + 1 elements."""
    return np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
