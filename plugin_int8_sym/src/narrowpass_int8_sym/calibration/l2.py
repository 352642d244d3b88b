"""The clipping range with the least squared error of rounding and clipping.

The error is the one that PyTorch's ``HistogramObserver`` documents: elements are distributed evenly
within a bin, and the squared distance from each to its level is integrated. What differs: levels
lie where int8 has them (zero is one of them), not in the middle of equal intervals; zeros cost
nothing, as they are exact; the elements of the outermost bins lie at the extremes; and the search
does not stop at the first range that is worse than the one before:

1. Rounding is taken as step² / 12 an element (Bennett 1948, "Spectra of quantized signals"), and
   charged for clipped elements too. Then the error is a convex function of the two ends, and
   coordinate descent finds its minimum.
2. From there, and from the whole range, a local search moves the ends while the exact error falls.

A squared error keeps a single far element rather than clip it: 60 among 4096 of N(0, 1) costs 2700
to clip to 8, and the wider steps cost 21; PyTorch's range ends at 59.97. So outliers are left out
first, see `_kept`; a share of 0 leaves none out.
"""

from __future__ import annotations

import numpy as np

from narrowpass_int8_sym.calibration.histogram import Array, CalibrationHistogram

_STEPS = (64, 16, 4, 1)
_ROUNDS = 100


_GAP = 0.5
"""How much of the range must be empty between outliers and the rest."""

_ENERGY = 0.5
"""The share of the sum of squares that outliers have at most: else they are the signal."""


def clipping_range(
    histogram: CalibrationHistogram, levels: int, outliers: float = 0.0
) -> tuple[int, int]:
    """Choose the clipping range, in bins.

    Args:
        histogram: with elements that are not zero.
        levels: how many the quantized type has for it.
        outliers: the share of elements that may be left out beyond a gap.

    Returns:
        The number of bins below zero and above it in the range, together at least 1.
    """
    counts = _kept(histogram, outliers)
    whole = (histogram.below, histogram.above)
    starts = (whole, _smooth(histogram, counts, levels))
    found = [_descend(histogram, counts, start, levels) for start in starts]
    return min(found, key=lambda item: item[0])[1]


def _kept(histogram: CalibrationHistogram, share: float) -> Array:
    """Return the counts without outliers.

    They are what lies beyond a gap of half the range, seen from zero: at most `share` of all
    elements, zeros included, with at most half of the sum of squares. Activations that are few
    but huge, as transformers have them, carry more than that, and stay.
    """
    counts = histogram.counts
    place = np.arange(len(counts)) + 0.5 - histogram.below
    points = np.sort(np.append(place[counts > 0], 0.0))
    widest = int(np.argmax(np.diff(points)))
    before, after = points[widest], points[widest + 1]
    if after - before < _GAP * len(counts):
        return counts
    beyond = place >= after if after > 0 else place <= before
    energy = counts * place**2
    few = counts[beyond].sum() <= share * (counts.sum() + histogram.zeros)
    if few and energy[beyond].sum() <= _ENERGY * energy.sum():
        return np.where(beyond, 0, counts)
    return counts


def error(
    histogram: CalibrationHistogram, counts: Array, below: int, above: int, levels: int
) -> float:
    """Return the sum of squared errors of a clipping range, in squared bin widths.

    Args:
        histogram: says where bins are.
        counts: of elements in its bins.
        below: bins of the range below zero.
        above: bins of the range above zero; not both are 0.
        levels: at equal distances over the range, shifted by at most half a step so that zero is
            one.
    """
    step = (below + above) / (levels - 1)
    zero = round(below / step)
    edges = np.arange(-histogram.below, histogram.above + 1, dtype=np.float64)
    level = np.clip(np.rint(edges / step), -zero, levels - 1 - zero)
    # The integral of the squared distance to the nearest level, from the lowest level on.
    # Multiplied out, as numpy's power of 3 takes ten times as long.
    away = edges - level * step
    integral = away * away * away / 3 + (level + zero) * (step**3 / 12)
    costs = np.diff(integral)
    for bin_, place in histogram.ends:
        nearest = min(max(round(place / step), -zero), levels - 1 - zero)
        costs[bin_] = (place - nearest * step) ** 2
    return float(costs @ counts)


def _smooth(histogram: CalibrationHistogram, counts: Array, levels: int) -> tuple[int, int]:
    """Return the best range if each element has the rounding error step² / 12."""
    below = histogram.below
    left, right = _clipping(counts[:below][::-1]), _clipping(counts[below:])
    rounding = float(counts.sum()) / (12 * (levels - 1) ** 2)
    lows, highs = np.arange(len(left)), np.arange(len(right))
    low, high = len(left) - 1, len(right) - 1
    for _ in range(_ROUNDS):
        before = low, high
        high = int(np.argmin(right + rounding * (low + highs) ** 2))
        low = int(np.argmin(left + rounding * (lows + high) ** 2))
        if (low, high) == before:
            break
    return (low, high) if low + high else (len(left) - 1, len(right) - 1)


def _clipping(counts: Array) -> Array:
    """Return the squared error of clipping, for each number of bins that are kept.

    Args:
        counts: of bins from zero outwards; shape [n].

    Returns:
        float64 of shape [n + 1].
    """
    place = np.arange(len(counts), dtype=np.float64)
    kept = np.arange(len(counts) + 1, dtype=np.float64)

    def rest(values: Array) -> Array:
        return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])

    # A bin that begins d beyond the end has d² + d + 1/3 an element; d = place - kept.
    ones, firsts, squares = rest(counts), rest(counts * place), rest(counts * place * place)
    result: Array = squares - 2 * kept * firsts + kept**2 * ones + firsts - kept * ones + ones / 3
    return result


def _descend(
    histogram: CalibrationHistogram, counts: Array, start: tuple[int, int], levels: int
) -> tuple[float, tuple[int, int]]:
    """Search locally from a range while the error falls; return the error and the range."""
    known: dict[tuple[int, int], float] = {}

    def cost(place: tuple[int, int]) -> float:
        if place not in known:
            known[place] = error(histogram, counts, *place, levels)
        return known[place]

    best = start
    for step in _STEPS:
        for _ in range(_ROUNDS):
            low, high = best
            around = [
                (low + down, high + up)
                for down in (0, step, -step)
                for up in (0, step, -step)
                if 0 <= low + down <= histogram.below and 0 <= high + up <= histogram.above
            ]
            nearby = min((place for place in around if sum(place)), key=cost)
            if nearby == best or cost(nearby) >= cost(best):
                break
            best = nearby
    return cost(best), best
