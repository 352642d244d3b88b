"""Where the nodes of a graph stand: in layers, each below those that it reads from.

Deterministic, and about linear in the number of nodes: layers are longest paths, their order comes
of barycentres, and places within a layer of least squares. A value that is read far below has one
line that all its readers branch off.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from narrowpass_report import placing

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
    x = placing.place(rows, points.links, widths, len(sizes))
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
