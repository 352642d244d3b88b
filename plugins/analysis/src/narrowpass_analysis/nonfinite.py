"""Numbers that are none: how many NaN and infinities outputs hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_analysis.inputs import upcast_to_numpy


@dataclass
class Share:
    """How many elements of an output are NaN, over the samples.

    Attributes:
        nan: elements that are NaN.
        total: all elements.
    """

    nan: int = 0
    total: int = 0

    def add(self, value: Any) -> None:
        """Count those of an output: an array, several, or None."""
        if isinstance(value, list | tuple):
            for item in value:
                self.add(item)
        elif isinstance(value, np.ndarray):
            self.nan += count(value)[0]
            self.total += value.size

    @property
    def value(self) -> float:
        """The share; 0 of no elements."""
        return self.nan / self.total if self.total else 0.0


def count(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the number of NaN and of infinities."""
    numbers = upcast_to_numpy(array)
    if numbers.dtype.kind not in "fc":
        return 0, 0
    return int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
