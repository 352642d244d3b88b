"""The minimum cut, against all cuts of small networks."""

from __future__ import annotations

import itertools
import random

import pytest

from narrowpass_fp16.placement.min_cut import INFINITE, SINK, SOURCE, Network


def price(edges, side):
    return sum(capacity for start, end, capacity in edges if side[start] and not side[end])


@pytest.mark.parametrize("seed", range(300))
def test_the_cut_is_the_cheapest_and_the_most_narrow(seed):
    rng = random.Random(seed)
    size = rng.randrange(3, 9)
    edges = []
    for _ in range(rng.randrange(2, 18)):
        start, end = rng.sample(range(size), 2)
        if start != SINK and end != SOURCE and (start, end) != (SOURCE, SINK):
            edges.append((start, end, INFINITE if rng.random() < 0.15 else rng.randrange(1, 6)))
    network = Network(size)
    for edge in edges:
        network.add_edge(*edge)
    sides = [(True, False, *rest) for rest in itertools.product((True, False), repeat=size - 2)]
    best = min(price(edges, side) for side in sides)
    if best >= INFINITE:
        with pytest.raises(ValueError, match="one side"):
            network.cut()
        return
    side = network.cut()
    assert (side[SOURCE], side[SINK]) == (True, False)
    assert price(edges, side) == best
    assert sum(side) == max(sum(other) for other in sides if price(edges, other) == best)


def test_a_long_chain_is_quick():
    network = Network(100_002)
    network.add_edge(SOURCE, 2, 5)
    for node in range(2, 100_001):
        network.add_edge(node, node + 1, 3 if node == 50_000 else 5)
    network.add_edge(100_001, SINK, 5)
    assert sum(network.cut()) == 50_000  # the source, and nodes 2 to 50,000
