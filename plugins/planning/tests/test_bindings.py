"""Which bindings of a partition are kept."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass_planning.plan.bindings import FEWEST, MOST, Binding, Bindings, most_of

pytestmark = pytest.mark.anywhere


def binding(*values):
    return Binding(object(), values, {}, ())


def test_the_one_used_longest_ago_is_forgotten():
    kept = Bindings(2)
    first, second, third = binding(), binding(), binding()
    kept.add("a", first)
    kept.add("b", second)
    assert kept.find("a", ()) is first
    kept.add("c", third)
    assert kept.find("b", ()) is None
    assert kept.find("a", ()) is first
    assert kept.find("c", ()) is third


def test_values_are_compared_by_their_elements():
    kept = Bindings(2)
    one = binding(np.array([3, 4]), None)
    kept.add("a", one)
    assert kept.find("a", (np.array([3, 4]), None)) is one
    assert kept.find("a", (np.array([3, 5]), None)) is None
    assert kept.find("a", (np.array([[3, 4]]), None)) is None
    assert kept.find("a", (np.array([3, 4]), np.array([1]))) is None


def test_a_binding_that_grew_is_forgotten_and_its_signature_is_not():
    kept = Bindings(2)
    one = binding()
    kept.add("a", one)
    kept.changed(one.bound)
    assert kept.find("a", ()) is None
    assert kept.seen("a")
    assert not kept.seen("b")
    kept.clear()
    assert not kept.seen("a")


def test_large_partitions_keep_fewer():
    assert [most_of(steps) for steps in (0, 10, 200, 10_000)] == [MOST, MOST, 30, FEWEST]
