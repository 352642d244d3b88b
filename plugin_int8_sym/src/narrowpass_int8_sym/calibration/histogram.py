"""A histogram of fixed bins, one of whose edges is zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from narrowpass import Histogram
from narrowpass.errors import DataError
from narrowpass.runtime.meters import Counts

Array = np.ndarray[Any, Any]

_SLACK = 1e-3
"""How far elements may leave the range of the first round, relative to its width.

A backend with another number of threads may add in another order, so the second round may differ
in the last bits.
"""

_SHOWN = 64
"""Bins of a histogram in a report; one more where zero would not be an edge."""


class CalibrationHistogram:
    """Bins of equal width that cover a range and zero, and the elements counted in them.

    Zeros are counted apart: int8 holds them exactly, whatever the range, and after a ReLU they
    are most of the elements.

    Args:
        low: the least element; finite.
        high: the largest element; finite. One of the two is not zero.
        bins: how many; at least 2.
        folded: whether magnitudes are counted, for ranges that are symmetric.

    Attributes:
        meter: the bins, with what was counted.
        ends: the bins of the least and the largest element, where these are below and above zero,
            and where the element is, in widths.
    """

    def __init__(self, low: float, high: float, bins: int, *, folded: bool) -> None:
        self._low, self._high = low, high
        if folded:
            low, high = 0.0, max(-low, high)
        low, high = min(low, 0.0), max(high, 0.0)
        # The smaller side gets the bin that zero would divide: then bins are hardly wider.
        share = bins * (-low / (high - low))
        below = math.ceil(share) if share <= bins / 2 else math.floor(share)
        below = min(max(below, int(low < 0)), bins - int(high > 0))
        width = max(-low / max(below, 1), high / max(bins - below, 1))
        self.meter = Counts(bins, below, width, folded)
        self.ends: list[tuple[int, float]] = []
        for number in (low, high):
            if number:
                place = number / width
                self.ends.append((min(max(int(place + below), 0), bins - 1), place))

    @property
    def below(self) -> int:
        """How many bins are below zero."""
        return self.meter.below

    @property
    def above(self) -> int:
        """How many bins are above zero."""
        return len(self.counts) - self.below

    @property
    def width(self) -> float:
        """The width of a bin."""
        return self.meter.width

    @property
    def counts(self) -> Array:
        """How many elements are in each bin, but zeros; int64 of shape [bins]."""
        return self.meter.counts

    @property
    def zeros(self) -> int:
        """How many elements are zero."""
        return self.meter.zeros

    def add(self, array: Array, where: str) -> None:
        """Count the elements of an array of any shape, and `check`."""
        self.meter.add(array, where)
        self.check(where)

    def check(self, where: str) -> None:
        """Check that all elements are within the range of the first round.

        Args:
            where: names the value and the sample that was counted last, for messages.

        Raises:
            DataError: an element is outside the range; NaN is.
        """
        seen = self.meter.extremes
        slack = _SLACK * (self._high - self._low) + _SLACK * self.width
        if seen.low >= self._low - slack and seen.high <= self._high + slack and not seen.nan:
            return
        found = "is NaN" if seen.nan else f"goes from {seen.low:g} to {seen.high:g}"
        raise DataError(
            f"{where} {found}, but in the first round all were between {self._low:g} and "
            f"{self._high:g}; samples must be the same each time they are gone through"
        )

    def compact(self, low: float, high: float) -> Histogram:
        """Return the histogram for reports, with neighbouring bins merged.

        Args:
            low: the lower end of the clipping range; 0 where magnitudes were counted.
            high: its upper end.
        """
        size = -(-len(self.counts) // _SHOWN)
        # Zero stays an edge.
        first = -self.below % size
        padded = np.pad(self.counts, (first, -(first + len(self.counts)) % size))
        start = -(self.below + first) * self.width
        counts = padded.reshape(-1, size).sum(axis=1)
        return Histogram(
            low=start,
            high=start + len(padded) * self.width,
            counts=tuple(counts.tolist()),
            zeros=self.zeros,
            clipping=(0.0 if self.meter.folded else low, high),
        )
