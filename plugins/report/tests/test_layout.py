"""Places of nodes: layers, order, and lines that lead from value to reader."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from narrowpass_report import layout as module
from narrowpass_report.layout import Edge, lay_out


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    widths = draw(st.lists(st.integers(20, 180), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    read = draw(st.sets(pairs.filter(lambda pair: pair[0] < pair[1]), max_size=40))
    return [(2 * w, 38) for w in widths], [Edge(a, a, b) for a, b in sorted(read)]


def ends(layout, nodes):
    """Return the nodes that each node's value is led to."""
    from_run, found = {}, set()
    for upper, lower, value in layout.segments:
        source = upper if upper < nodes else from_run[upper]
        assert source == value
        if lower < nodes:
            found.add((source, lower))
        else:
            from_run[lower] = source
    return found


@given(graphs())
def test_layout(graph):
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    for edge in edges:
        assert layout.layers[edge.source] < layout.layers[edge.target]
    assert not layout.far
    assert ends(layout, len(sizes)) == {(edge.source, edge.target) for edge in edges}
    for layer in range(len(layout.tops)):
        row = sorted((layout.x[i], i) for i in range(len(sizes)) if layout.layers[i] == layer)
        for (x, left), (y, right) in pairwise(row):
            assert y - x >= (sizes[left][0] + sizes[right][0]) / 2
        for x, first, last in layout.runs:
            if first <= layer <= last:  # a line passes beside the nodes
                assert all(abs(x - place) >= sizes[i][0] / 2 for place, i in row)
    below = zip(layout.tops, layout.heights, layout.tops[1:], strict=False)
    assert all(top + height < following for top, height, following in below)
    assert lay_out(sizes, edges) == layout


def test_segments_go_down_one_layer():
    edges = [Edge(0, 0, 1), Edge(1, 1, 2), Edge(2, 2, 3), Edge(0, 0, 3), Edge(1, 1, 3)]
    layout = lay_out([(60, 38)] * 4, edges)
    firsts = [*layout.layers, *(first for _, first, _ in layout.runs)]
    lasts = [*layout.layers, *(last for _, _, last in layout.runs)]
    for upper, lower, _ in layout.segments:
        assert firsts[upper] < firsts[lower] <= lasts[upper] + 1


def test_what_only_waits_stands_above_its_reader():
    chain = [Edge(i, i, i + 1) for i in range(4)]
    layout = lay_out([(60, 38)] * 7, [*chain, Edge(5, 5, 6), Edge(6, 6, 4)])
    assert layout.layers == [0, 1, 2, 3, 4, 2, 3]


def test_cycles_and_nothing():
    layout = lay_out([(60, 38)] * 3, [Edge(0, 0, 1), Edge(1, 1, 0), Edge(2, 2, 2)])
    assert len(layout.x) == 3
    assert layout.far
    assert lay_out([], []).x == []


def led(layout, nodes):
    return [(value, lower) for _, lower, value in layout.segments if lower < nodes]


def test_longest_lines_are_far(monkeypatch):
    monkeypatch.setattr(module, "_LEAST", 0)
    monkeypatch.setattr(module, "_POINTS", 1)
    chain = [Edge(i, i, i + 1) for i in range(9)]
    more = [Edge(0, 0, 9), Edge(10, 0, 9), Edge(11, 0, 9), Edge(12, 0, 3)]
    layout = lay_out([(60, 38)] * 10, [*chain, *more])
    # There is room for one of the three long ones; value 0 keeps the line to its near reader.
    assert layout.far == [10, 11]
    assert (0, 1) in led(layout, 10)
    assert len(led(layout, 10)) == 11
