"""The order of points within layers, and their places from left to right."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence

_NODE_GAP = 22
_LINE_GAP = 9
"""Pixels between neighbours: of nodes, and where one of them is only a line."""

_SWEEPS = 6
_WEIGHTS = (4.0, 0.1, 8.0)
"""How much a link resists to be bent: between nodes, at one end of a line, and within it. Chains of
nodes are straight then, and so are lines beside them."""

_GRAVITY = 0.02
"""How much all points are drawn to the middle: it keeps deep graphs from leaning."""


def place(
    rows: list[list[int]], links: Sequence[tuple[int, int]], widths: Sequence[int], nodes: int
) -> list[int]:
    """Return the x of each point.

    Args:
        rows: points of each layer, in any order; they are ordered.
        links: from a point to one of the next layer.
        widths: of the points.
        nodes: points below this number are nodes, the others are lines passing through.
    """
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for upper, lower in links:
        above[lower].append(upper)
        below[upper].append(lower)
    _order(rows, above, below)
    return _Places(rows, above, below, widths, nodes).solve()


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort each layer by where its neighbours stand; keep the sweep with fewest crossings."""
    at = [0.0] * len(above)
    for row in rows:
        _number(row, at)
    best, fewest = [list(row) for row in rows], _crossings(rows, below, at)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            sides = above if down else below
            keys = {
                p: sum(at[q] for q in sides[p]) / len(sides[p]) if sides[p] else at[p] for p in row
            }
            row.sort(key=keys.__getitem__)
            _number(row, at)
        found = _crossings(rows, below, at)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
        if not fewest:
            break
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept


def _number(row: Sequence[int], at: list[float]) -> None:
    for index, point in enumerate(row):
        at[point] = float(index)


def _crossings(rows: Sequence[Sequence[int]], below: list[list[int]], at: list[float]) -> int:
    total = 0
    for row in rows:
        seen: list[float] = []
        for point in row:
            ends = [at[other] for other in below[point]]
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


class _Places:
    """Moves points towards their neighbours, as far as those beside them let them."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        above: list[list[int]],
        below: list[list[int]],
        widths: Sequence[int],
        nodes: int,
    ) -> None:
        self._rows, self._above, self._below, self._nodes = rows, above, below, nodes
        self._x = [0.0] * len(widths)
        self._offsets: list[list[float]] = []
        for row in rows:
            offset, offsets = 0.0, []
            for index, point in enumerate(row):
                if index:
                    left = row[index - 1]
                    line = left >= nodes or point >= nodes
                    gap = _LINE_GAP if line else _NODE_GAP
                    offset += (widths[left] + widths[point]) / 2 + gap
                offsets.append(offset)
            self._offsets.append(offsets)
            for point, place in zip(row, offsets, strict=True):
                self._x[point] = place - offset / 2

    def solve(self) -> list[int]:
        """Return the places."""
        for _ in range(2):
            self._sweep(range(len(self._rows)), [self._above])
            self._sweep(range(len(self._rows) - 1, -1, -1), [self._below])
        for _ in range(3):
            self._sweep(range(len(self._rows)), [self._above, self._below])
            self._sweep(range(len(self._rows) - 1, -1, -1), [self._above, self._below])
        rounded = [0] * len(self._x)
        for row, offsets in zip(self._rows, self._offsets, strict=True):
            least = -math.inf
            for index, point in enumerate(row):
                rounded[point] = math.ceil(max(round(self._x[point]), least))
                if index + 1 < len(row):
                    least = rounded[point] + offsets[index + 1] - offsets[index]
        return rounded

    def _sweep(self, order: range, sides: Sequence[list[list[int]]]) -> None:
        for index in order:
            row, x = self._rows[index], self._x
            wanted, weights = [], []
            for point in row:
                total = weight = 0.0
                for side in sides:
                    for other in side[point]:
                        share = _WEIGHTS[(point >= self._nodes) + (other >= self._nodes)]
                        total += share * x[other]
                        weight += share
                weight = weight or 0.01
                total = total or 0.01 * x[point]
                wanted.append(total / (weight * (1 + _GRAVITY)))
                weights.append(weight)
            for point, place in zip(row, _fit(wanted, weights, self._offsets[index]), strict=True):
                x[point] = place


def _fit(
    wanted: Sequence[float], weights: Sequence[float], offsets: Sequence[float]
) -> list[float]:
    """Return the places nearest to those wanted, by least squares, that keep their distances."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, length = want - offset, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other, share, count = blocks.pop()
            mean = (mean * total + other * share) / (total + share)
            total, length = total + share, length + count
        blocks.append((mean, total, length))
    starts = [mean for mean, _, length in blocks for _ in range(length)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
