"""The memory planner: blocks that live at once never overlap, and gaps are used."""

from __future__ import annotations

import random

import pytest

from narrowpass_planning.memory.allocator import ALIGNMENT
from narrowpass_planning.memory.arena import Lifetime, plan_arena

pytestmark = pytest.mark.anywhere


def overlap(one, other):
    return one[0] < other[1] and other[0] < one[1]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_live_at_once_are_apart(seed):
    choice = random.Random(seed)
    lifetimes = [
        Lifetime(index, choice.randrange(0, 5000), index, index + choice.randrange(0, 6))
        for index in range(60)
    ]
    offsets, total = plan_arena(lifetimes)
    spans = {item.key: (offsets[item.key], offsets[item.key] + item.size) for item in lifetimes}
    assert all(start % ALIGNMENT == 0 and end <= total for start, end in spans.values())
    for one in lifetimes:
        for other in lifetimes:
            if one.key < other.key and other.first <= one.last:
                assert not overlap(spans[one.key], spans[other.key])
    assert total < sum(item.size + 2 * ALIGNMENT for item in lifetimes)


def test_the_smallest_gap_that_fits_is_taken():
    large, small = 1000, 100
    lifetimes = [
        Lifetime("large", large, 0, 0),
        Lifetime("wall", 10, 0, 9),
        Lifetime("small", small, 0, 0),
        Lifetime("end", 10, 0, 9),
        Lifetime("new", small, 1, 9),
    ]
    offsets, _ = plan_arena(lifetimes)
    assert offsets["new"] == offsets["small"]


def test_a_block_reuses_the_memory_of_one_that_ends_with_its_step():
    offsets, total = plan_arena([Lifetime("a", 100, 0, 1), Lifetime("b", 100, 1, 2, reuses="a")])
    assert offsets["b"] == offsets["a"]
    assert total == 192
