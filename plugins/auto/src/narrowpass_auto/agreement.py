"""Agreement of classes: how likely rows are to move, and what a number of rows proves.

Few rows show whether classes move at all, and not how often: of 30 rows that agree, each tenth of
others may move. The margins of the rows say more. A row moves where the difference between its two
largest elements changes by more than that difference, its margin. Changes are taken as normal, with
the standard deviation that all rows show, and as independent of margins; then the chance of each
row follows from its margin, and their mean is the share of other rows that is likely to move.

Where changes are small, few rows are near enough to move. So chances are those of changes several
times as large, too, divided by as much, as if margins were as frequent near 0 as further away; of
these shares the largest counts. In trained models margins near 0 are the rarer ones.

Rows of probabilities are taken as their logarithms: the probability of a class that is nearly
certain hardly changes, whatever its logits do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CONFIDENCE = 0.95
_LEAST_PROBABILITY = 1e-6
"""Smaller ones count as this: they are subnormal in float16, and say nothing about changes."""

_TIMES = (1.0, 2.0, 4.0, 8.0)
"""By what changes are multiplied, and shares of rows that move divided."""


class Margins:
    """Margins of rows, and by how much narrow types changed them, sample by sample.

    Takes 16 bytes for each row.
    """

    def __init__(self) -> None:
        self._margins: list[Array] = []
        self._changes: list[Array] = []

    def add(self, reference: Array, actual: Array) -> None:
        """Take one sample of an output.

        Args:
            reference: [..., classes]; see `has_margins`.
            actual: the same of the narrow model.
        """
        right, other = (
            np.asarray(array, np.float64).reshape(-1, reference.shape[-1])
            for array in (reference, actual)
        )
        if not len(right):
            right = other = np.zeros((0, 2))
        if _are_probabilities(right):
            right, other = (np.log(np.maximum(a, _LEAST_PROBABILITY)) for a in (right, other))
        second, first = np.argpartition(right, -2, axis=-1)[:, -2:].T
        at = np.arange(len(right))
        with np.errstate(invalid="ignore"):
            margins = right[at, first] - right[at, second]
            changes = other[at, first] - other[at, second] - margins
        # NaN, and infinities: nothing is known of the row but whether its class moved.
        known = np.isfinite(margins) & np.isfinite(changes)
        self._margins.append(margins[known])
        self._changes.append(changes[known])

    def chances(self) -> list[float | None]:
        """Return for each sample the share of its rows that is likely to move; None for no rows."""
        return [float(np.mean(each)) if each.size else None for each in self._of_rows()]

    def chance(self) -> float:
        """Return the share of all rows that is likely to move; 0 for no rows."""
        found = np.concatenate([np.empty(0), *self._of_rows()])
        return float(np.mean(found)) if found.size else 0.0

    def _of_rows(self) -> list[Array]:
        from scipy.special import ndtr

        changes = np.concatenate([np.empty(0), *self._changes])
        deviation = math.sqrt(float(np.mean(changes**2))) if changes.size else 0.0
        if not deviation:
            return [np.zeros_like(margins) for margins in self._margins]
        scaled = [
            [ndtr(-margins / (times * deviation)) / times for margins in self._margins]
            for times in _TIMES
        ]
        return max(scaled, key=lambda found: float(np.sum([np.sum(each) for each in found])))


def has_margins(output: object) -> bool:
    """Return whether an output is an array of floating-point rows of two numbers or more."""
    if not isinstance(output, np.ndarray) or not output.ndim or output.shape[-1] < 2:
        return False
    return bool(output.dtype.kind == "f")


def _are_probabilities(rows: Array) -> bool:
    whole = np.abs(rows.sum(axis=-1) - 1.0) < 1e-2
    return bool(np.all(rows >= 0.0) and np.all(whole))


def proven_agreement(agreeing: int, rows: int) -> float:
    """Return the least share of all rows that agrees, with `CONFIDENCE`, where so many do.

    The bound of Clopper and Pearson, *The use of confidence or fiducial limits*, 1934, for rows
    that are independent.
    """
    from scipy.special import betaincinv

    if not agreeing:
        return 0.0
    return float(betaincinv(agreeing, rows - agreeing + 1, 1.0 - CONFIDENCE))


def rows_to_prove(share: float) -> int:
    """Return how many rows must agree, all of them, to prove a share below 1 with `CONFIDENCE`."""
    return math.ceil(math.log(1.0 - CONFIDENCE) / math.log(share)) if share > 0.0 else 1
