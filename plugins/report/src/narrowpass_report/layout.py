"""Where the nodes of a graph stand: in layers, each below those that it reads from.

Deterministic, and about linear in the number of nodes: layers are longest paths, their order comes
of barycentres, and places within a layer of least squares. A value that is read far below has one
line that all its readers branch off.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

GAP = 34
"""Pixels between layers."""

_POINTS = 4
_LEAST = 2000
"""Points of lines that are placed: for each node, and in any case. What remains of lines then, the
longest, is shown on demand only."""

_NEAR = 6
"""Layers over which a reader has a line whatever else reads the value."""


@dataclass(frozen=True)
class Edge:
    """A node reads a value of another.

    Attributes:
        value: any number that identifies the value.
        source: the node that computes it.
        target: the node that reads it.
    """

    value: int
    source: int
    target: int


@dataclass
class Layout:
    """Places of nodes and lines.

    Attributes:
        layers: of each node.
        x: the middle of each node.
        tops: y of each layer.
        heights: of each layer.
        runs: straight lines through layers: x, first and last layer.
        segments: lines from one point to another, with the value. A point below the number of
            nodes is a node; the others are runs.
        far: indices of edges that have no line.
    """

    layers: list[int]
    x: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    segments: list[tuple[int, int, int]] = field(default_factory=list)
    far: list[int] = field(default_factory=list)


def lay_out(sizes: Sequence[tuple[int, int]], edges: Sequence[Edge]) -> Layout:
    """Place nodes.

    Args:
        sizes: width and height of each node.
        edges: between them; those of a cycle may point upwards.
    """
    layout = Layout(_layers(len(sizes), edges))
    count = max(layout.layers, default=-1) + 1
    layout.heights = [0] * count
    for layer, (_, height) in zip(layout.layers, sizes, strict=True):
        layout.heights[layer] = max(layout.heights[layer], height)
    top = 0
    for height in layout.heights:
        layout.tops.append(top)
        top += height + GAP
    points = _Points(layout, edges, _POINTS * len(sizes) + _LEAST)
    rows: list[list[int]] = [[] for _ in range(count)]
    for point, layer in enumerate(points.layers):
        rows[layer].append(point)
    widths = [width for width, _ in sizes] + [0] * (len(points.layers) - len(sizes))
    x = place(rows, points.links, widths, len(sizes))
    layout.x = x[: len(sizes)]
    points.straighten(x)
    return layout


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return longest paths from above; what only waits for its reader stands right above that."""
    reads: list[set[int]] = [set() for _ in range(count)]
    readers: list[set[int]] = [set() for _ in range(count)]
    for edge in edges:
        if edge.source != edge.target:
            reads[edge.target].add(edge.source)
            readers[edge.source].add(edge.target)
    layers = [0] * count
    missing = [len(sources) for sources in reads]
    waiting = deque(node for node in range(count) if not missing[node])
    order = []
    while waiting:
        node = waiting.popleft()
        order.append(node)
        for reader in sorted(readers[node]):
            layers[reader] = max(layers[reader], layers[node] + 1)
            missing[reader] -= 1
            if not missing[reader]:
                waiting.append(reader)
    waits = [False] * count
    for node in order:
        waits[node] = all(waits[s] and len(readers[s]) == 1 for s in reads[node])
        waits[node] &= len(reads[node]) <= 1
    for node in reversed(order):
        if waits[node] and readers[node]:
            layers[node] = max(layers[node], min(layers[r] for r in readers[node]) - 1)
    return layers


class _Points:
    """Nodes, and the points where lines pass through layers.

    Args:
        layout: with layers; gets runs, segments and far edges.
        edges: between nodes.
        most: how many points there may be for lines.
    """

    def __init__(self, layout: Layout, edges: Sequence[Edge], most: int) -> None:
        self._layout, self._nodes = layout, len(layout.layers)
        self.layers = list(layout.layers)
        self.links: list[tuple[int, int]] = []
        self._values: list[int] = []
        by_value: dict[int, list[int]] = defaultdict(list)
        for index, edge in enumerate(edges):
            if self._span(edge) > 0:
                by_value[edge.value].append(index)
            else:
                layout.far.append(index)
        spans = {
            value: max(self._span(edges[index]) for index in indices)
            for value, indices in by_value.items()
        }
        for value, span in sorted(spans.items(), key=lambda item: (item[1], item[0])):
            reach = span if span - 1 <= most else _NEAR
            most -= span - 1 if reach == span else 0
            near = [i for i in by_value[value] if self._span(edges[i]) <= reach]
            layout.far += [i for i in by_value[value] if self._span(edges[i]) > reach]
            if near:
                self._add(value, [edges[index] for index in near])

    def _span(self, edge: Edge) -> int:
        return self._layout.layers[edge.target] - self._layout.layers[edge.source]

    def _add(self, value: int, edges: Sequence[Edge]) -> None:
        """Lead a value's line from its node down to the last reader."""
        source = edges[0].source
        first = self._layout.layers[source]
        targets: dict[int, set[int]] = defaultdict(set)
        for edge in edges:
            targets[self._layout.layers[edge.target]].add(edge.target)
        last, point = max(targets), source
        for layer in range(first + 1, last + 1):
            for target in sorted(targets.get(layer, ())):
                self._link(point, target, value)
            if layer < last:
                self.layers.append(layer)
                self._link(point, len(self.layers) - 1, value)
                point = len(self.layers) - 1

    def _link(self, upper: int, lower: int, value: int) -> None:
        self.links.append((upper, lower))
        self._values.append(value)

    def straighten(self, x: Sequence[int]) -> None:
        """Write runs and segments: points of a line that stand below each other are one run."""
        layout = self._layout
        run_of: dict[int, int] = {}
        for (upper, lower), value in zip(self.links, self._values, strict=True):
            if lower >= self._nodes:
                layer = self.layers[lower]
                run = run_of.get(upper)
                if run is not None and x[upper] == x[lower]:
                    layout.runs[run] = (x[lower], layout.runs[run][1], layer)
                    run_of[lower] = run
                    continue
                run_of[lower] = len(layout.runs)
                layout.runs.append((x[lower], layer, layer))
            layout.segments.append((self._id(upper, run_of), self._id(lower, run_of), value))

    def _id(self, point: int, run_of: dict[int, int]) -> int:
        return point if point < self._nodes else self._nodes + run_of[point]


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
