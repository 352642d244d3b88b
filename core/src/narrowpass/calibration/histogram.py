"""A histogram for people: what reports keep of a value's elements, and draw.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Counts of a value's elements in bins of equal width, and the window chosen for it.

    Attributes:
        low: where the first bin begins.
        high: where the last bin ends.
        counts: of the elements in each bin, but zeros; some dozens of bins at most, since a
            report has a histogram for each value.
        zeros: how many elements are zero: exact in any window, and often most of them.
        window: the least and the largest number that the narrow type holds; None where no window
            was chosen.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    zeros: int = 0
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: ends that are not in order or not finite, no bins, or negative counts.
        """
        for low, high in [(self.low, self.high), *([self.window] if self.window else [])]:
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"a histogram cannot go from {low} to {high}")
        if not self.counts or min(self.counts) < 0 or self.zeros < 0:
            raise ValueError("a histogram needs bins, with counts of 0 or more")

    @property
    def clipped(self) -> float:
        """The share of elements outside of the window, to the nearest bins; 0 without one."""
        total = sum(self.counts) + self.zeros
        if self.window is None or not total:
            return 0.0
        width = (self.high - self.low) / len(self.counts)
        first, last = ((end - self.low) / width for end in self.window)
        inside = sum(self.counts[max(round(first), 0) : max(round(last), 0)]) + self.zeros
        return 1.0 - inside / total

    def to_json(self) -> dict[str, Any]:
        """Give the fields for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Histogram:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is no histogram.
        """
        try:
            window = told.get("window")
            return cls(
                float(told["low"]),
                float(told["high"]),
                tuple(map(_whole, told["counts"])),
                _whole(told.get("zeros", 0)),
                None if window is None else _pair(window),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a histogram: {error!r}") from error


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no count")
    return value


def _pair(given: Sequence[Any]) -> tuple[float, float]:
    low, high = given
    return float(low), float(high)
