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
    """Counts of a value's elements in bins of equal width, and the clipping range chosen for it.

    Attributes:
        low: where the first bin begins.
        high: where the last bin ends.
        counts: of the elements in each bin, but zeros; some dozens of bins at most, since a
            report has a histogram for each value.
        zeros: how many elements are zero: exact in any clipping range, and often most of them.
        clipping: the least and the largest number that the narrow type holds; None where none was
            chosen.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    zeros: int = 0
    clipping: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: ends that are not in order or not finite, no bins, or negative counts.
        """
        for low, high in [(self.low, self.high), *([self.clipping] if self.clipping else [])]:
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"a histogram cannot go from {low} to {high}")
        if not self.counts or min(self.counts) < 0 or self.zeros < 0:
            raise ValueError("a histogram needs bins, with counts of 0 or more")

    @property
    def clipped(self) -> float:
        """The share of elements outside of the clipping range, to the nearest bins, or 0."""
        total = sum(self.counts) + self.zeros
        if self.clipping is None or not total:
            return 0.0
        width = (self.high - self.low) / len(self.counts)
        first, last = ((end - self.low) / width for end in self.clipping)
        inside = sum(self.counts[max(round(first), 0) : max(round(last), 0)]) + self.zeros
        return 1.0 - inside / total

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Histogram:
        """Read what `to_json` returned.

        Raises:
            ValueError: it is no histogram.
        """
        try:
            clipping = document.get("clipping")
            return cls(
                float(document["low"]),
                float(document["high"]),
                tuple(map(_whole, document["counts"])),
                _whole(document.get("zeros", 0)),
                None if clipping is None else _pair(clipping),
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
