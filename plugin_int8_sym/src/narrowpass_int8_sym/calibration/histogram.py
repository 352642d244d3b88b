"""A histogram of fixed bins, one of whose edges is zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from narrowpass.errors import DataError, UsageError

Array = np.ndarray[Any, Any]

CHUNK = 1 << 18
"""Elements that are looked at in one step: their temporary arrays fit the processor's cache."""

_FLOATS = {"bfloat16", "float16", "float32", "float64"}
_SLACK = 1e-3
"""How far elements may leave the range of the first round, relative to its width.

A backend may sum in another order with another number of threads, so the second round may differ
in the last bits.
"""


def chunks(array: object, where: str) -> Iterator[Array]:
    """Give the elements of an array in flat float32 pieces.

    Args:
        array: of any shape; float16, bfloat16, float32 or float64.
        where: names the value and the sample, for messages.

    Raises:
        UsageError: it is no array of floating point numbers.
    """
    if not isinstance(array, np.ndarray) or array.dtype.name not in _FLOATS:
        kind = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        raise UsageError(f"{where} is {kind}; only tensors of floating point numbers have a range")
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        with np.errstate(over="ignore"):
            yield flat[start : start + CHUNK].astype(np.float32, copy=False)


class Histogram:
    """Counts elements in bins of equal width that cover a range and zero.

    Bin i covers [(i - below) * width, (i + 1 - below) * width). Zeros are counted apart: int8
    holds them exactly, whatever the range, and after a ReLU they are most of the elements.

    Args:
        low: the least element; finite.
        high: the largest element; finite. One of the two is not zero.
        bins: how many; at least 2.
        folded: whether magnitudes are counted, for ranges that are symmetric.

    Attributes:
        below: how many bins are below zero.
        width: of a bin.
        counts: of the elements that are not zero; int64 of shape [bins].
        zeros: how many elements are zero.
        ends: the bins of the least and the largest element, where these are below and above zero,
            and where the element is, in widths.
    """

    def __init__(self, low: float, high: float, bins: int, *, folded: bool) -> None:
        self._low, self._high, self._folded = low, high, folded
        if folded:
            low, high = 0.0, max(-low, high)
        low, high = min(low, 0.0), max(high, 0.0)
        # The smaller side gets the bin that zero would divide: then bins are hardly wider.
        share = bins * (-low / (high - low))
        below = math.ceil(share) if share <= bins / 2 else math.floor(share)
        self.below = min(max(below, int(low < 0)), bins - int(high > 0))
        above = bins - self.below
        self.width = max(-low / max(self.below, 1), high / max(above, 1))
        self.counts: Array = np.zeros(bins, np.int64)
        self.zeros = 0
        self.ends: list[tuple[int, float]] = []
        for number in (low, high):
            if number:
                place = number / self.width
                self.ends.append((min(max(int(place + self.below), 0), bins - 1), place))

    @property
    def above(self) -> int:
        """How many bins are above zero."""
        return len(self.counts) - self.below

    def add(self, array: Array, where: str) -> None:
        """Count the elements of an array of any shape. Each element's bin depends on it alone.

        Args:
            array: of floating point numbers.
            where: names the value and the sample, for messages.

        Raises:
            DataError: an element is outside the range; NaN is.
            UsageError: it is no array of floating point numbers.
        """
        slack = _SLACK * (self._high - self._low) + _SLACK * self.width
        last = len(self.counts) - 1
        for part in chunks(array, where):
            least, largest = float(part.min()), float(part.max())
            if not (least >= self._low - slack and largest <= self._high + slack):
                raise DataError(
                    f"{where} goes from {least:g} to {largest:g}, but in the first round all "
                    f"were between {self._low:g} and {self._high:g}; samples must be the same "
                    "each time they are gone through"
                )
            places = np.multiply(
                np.abs(part) if self._folded else part, 1.0 / self.width, dtype=np.float64
            )
            # Before zero is moved, else what is just below it would be rounded into its bin.
            np.floor(places, out=places)
            places += self.below
            np.clip(places, 0, last, out=places)
            self.counts += np.bincount(places.astype(np.intp), minlength=last + 1)
            zeros = part.size - int(np.count_nonzero(part))
            self.counts[min(self.below, last)] -= zeros
            self.zeros += zeros
