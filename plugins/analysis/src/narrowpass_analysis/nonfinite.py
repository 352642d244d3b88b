"""Counts of NaN and infinities in outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_analysis.inputs import upcast_to_numpy


@dataclass
class NanCount:
    """How many elements of an output are NaN, over the samples.

    Attributes:
        nan: elements that are NaN.
        total: all elements.
    """

    nan: int = 0
    total: int = 0

    def add(self, value: Any) -> None:
        """Count NaN and all elements of an output: an array, a sequence of them, or None."""
        if isinstance(value, list | tuple):
            for item in value:
                self.add(item)
        elif isinstance(value, np.ndarray):
            self.nan += count_nonfinite(value)[0]
            self.total += value.size

    @property
    def share(self) -> float:
        """The share of NaN; 0 where there are no elements."""
        return self.nan / self.total if self.total else 0.0


def count_nonfinite(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the number of NaN and of infinities."""
    numbers = upcast_to_numpy(array)
    if numbers.dtype.kind not in "fc":
        return 0, 0
    return int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
