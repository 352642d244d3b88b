"""Meters: what is kept of a value while a program runs, where the elements themselves are not.

`Program.observe` fills them. What they hold depends on the elements alone, neither on their order
nor on how they are divided into arrays, so a backend may look at a value where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from narrowpass.errors import UsageError

Array = np.ndarray[Any, Any]

CHUNK = 1 << 18
"""Elements that are looked at in one step: their temporary arrays fit the processor's cache."""

_FLOATS = {"bfloat16", "float16", "float32", "float64"}


@dataclass
class Extremes:
    """The least and the largest element, as float32.

    Attributes:
        low: of those that were seen; infinity where there were none.
        high: likewise, minus infinity.
        nan: whether an element is NaN. The extremes say nothing then.
    """

    low: float = math.inf
    high: float = -math.inf
    nan: bool = False

    def add(self, array: Array, where: str) -> None:
        """Look at the elements of an array of any shape.

        Args:
            array: float16, bfloat16, float32 or float64, all taken as float32.
            where: names the value, for messages.

        Raises:
            UsageError: it is no array of floating point numbers.
        """
        for part in chunks(array, where):
            self.include(float(part.min()), float(part.max()))

    def include(self, low: float, high: float) -> None:
        """Take note of the extremes of some elements; NaN where one is."""
        if math.isnan(low) or math.isnan(high):
            self.nan = True
            return
        self.low, self.high = min(self.low, low), max(self.high, high)


@dataclass
class Counts:
    """How many elements lie in bins of equal width, one of whose edges is zero.

    Bin i covers [(i - below) * width, (i + 1 - below) * width); the first and the last one also
    have what lies further out. Zeros are counted apart.

    Attributes:
        bins: how many; at most 65536.
        below: how many of them are below zero.
        width: of a bin; a normal number above 0.
        folded: whether magnitudes are counted.
        counts: of the elements that are not zero; int64 of shape [bins].
        zeros: how many elements are zero.
        extremes: of all elements. Where one is NaN, the counts say nothing.
    """

    bins: int
    below: int
    width: float
    folded: bool = False
    counts: Array = field(init=False)
    zeros: int = field(default=0, init=False)
    extremes: Extremes = field(default_factory=Extremes, init=False)

    def __post_init__(self) -> None:
        """Check the bins.

        Raises:
            UsageError: bins that cannot be counted in.
        """
        if not 1 <= self.bins <= 1 << 16 or not 0 <= self.below <= self.bins:
            raise UsageError(f"{self.below} of {self.bins} bins cannot be below zero")
        if not np.finfo(np.float64).tiny <= self.width < math.inf:
            raise UsageError(f"bins cannot be {self.width} wide")
        self.counts = np.zeros(self.bins, np.int64)

    @property
    def scale(self) -> float:
        """What elements are multiplied by, in float64, to count in widths of bins."""
        return 1.0 / self.width

    def add(self, array: Array, where: str) -> None:
        """Count the elements of an array of any shape; see `Extremes.add`."""
        last = self.bins - 1
        for part in chunks(array, where):
            self.extremes.include(float(part.min()), float(part.max()))
            if self.extremes.nan:
                return
            places = np.multiply(
                np.abs(part) if self.folded else part, self.scale, dtype=np.float64
            )
            # Before zero is moved, else what is just below it would be rounded into its bin.
            np.floor(places, out=places)
            places += self.below
            np.clip(places, 0, last, out=places)
            self.counts += np.bincount(places.astype(np.intp), minlength=self.bins)
            zeros = part.size - int(np.count_nonzero(part))
            self.counts[min(self.below, last)] -= zeros
            self.zeros += zeros


Meter: TypeAlias = Extremes | Counts
"""Any of them."""


def chunks(array: object, where: str) -> Iterator[Array]:
    """Yield the elements of an array in flat float32 pieces.

    Args:
        array: of any shape; float16, bfloat16, float32 or float64.
        where: names the value, for messages.

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
