"""Scales that keep limits: against exhaustive search, and with limits that cannot be kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowpass.runtime.quantization import (
    INPUT_TO_OUTPUT,
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    ScaleBound,
)
from narrowpass_int8_sym.static.scale_constraints import ScaleConstraint, solve
from narrowpass_int8_sym.static.union_find import UnionFind

MOST = 10
"""The largest exponent of a scale in the exhaustive search."""


def kept(relation, scales):
    """Return whether limits are kept, by their definition and without the solver."""
    bound, output = relation.bound, scales[relation.output]
    inputs = [scales[key] for key in relation.inputs]
    if bound.ratio == WEIGHT_TO_OUTPUT:
        ratios = [inputs[0] * weight / output for weight in relation.weights]
    else:
        ratios = [each / output for each in inputs]
    return np.all([(bound.low <= ratio) & (ratio <= bound.high) for ratio in ratios], axis=0)


exponents = st.integers(-3, 3)
keys = st.sampled_from("abc")
additions = st.builds(
    lambda a, b, out, low, high: ScaleConstraint(
        ScaleBound(INPUT_TO_OUTPUT, 2.0**-low, 2.0**high, closed=True), (a, b), out
    ),
    keys,
    keys,
    keys,
    st.integers(0, 3),
    st.integers(1, 3),
)
weighted_nodes = st.builds(
    lambda a, out, weights, high: ScaleConstraint(
        ScaleBound(WEIGHT_TO_OUTPUT, 2.0**-40, 2.0**high, closed=True),
        (a,),
        out,
        2.0 ** np.array(weights),
    ),
    keys,
    keys,
    st.lists(st.integers(-2, 2), min_size=1, max_size=2),
    st.integers(0, 3),
)


@settings(deadline=None, max_examples=150)
@given(
    least=st.fixed_dictionaries(dict.fromkeys("abc", exponents)),
    relations=st.lists(additions | weighted_nodes, min_size=1, max_size=4),
)
def test_the_least_scales_that_keep_all_limits(least, relations):
    """Powers of two need no others: all limits are differences of exponents."""
    axes = [2.0 ** np.arange(least[key], MOST + 1) for key in "abc"]
    scales = dict(zip("abc", np.meshgrid(*axes), strict=True))
    good = np.logical_and.reduce([kept(relation, scales) for relation in relations])
    solution = solve({key: 2.0**n for key, n in least.items()}, (), relations, margin=0.0)
    assert bool(solution.refused) == (not good.any())
    if good.any():
        # The conditions are closed under the minimum, so that there is one least solution.
        assert solution.scales == {key: scale[good].min() for key, scale in scales.items()}


def test_what_is_refused_is_what_cannot_be_kept():
    """A relation that asks of itself without end drives those after it, which are not at fault."""
    guilty = ScaleConstraint(ScaleBound(WEIGHT_TO_OUTPUT, 0.0, 1.0), ("a",), "a", np.array([4.0]))
    innocent = ScaleConstraint(ScaleBound(WEIGHT_TO_OUTPUT, 0.0, 1.0), ("a",), "b", np.array([0.5]))
    for relations in ([guilty, innocent], [innocent, guilty]):
        solution = solve({"a": 1.0, "b": 1.0}, (), relations)
        assert list(solution.refused) == [guilty]
        (violation,) = solution.refused.values()
        assert (violation.measured, violation.limit) == (4.0, 1.0)
        assert solution.scales == {"a": 1.0, "b": 1.0}


def test_a_fixed_scale_is_not_raised():
    relation = ScaleConstraint(ScaleBound(INPUT_TO_OUTPUT, 2.0**-4, 2.0**4), ("a",), "b")
    solution = solve({"a": 64.0, "b": 1.0}, ("b",), [relation])
    (violation,) = solution.refused.values()
    assert (violation.measured, violation.limit) == (64.0, 16.0)
    solution = solve({"a": 2.0**-8, "b": 1.0}, ("b",), [relation])
    assert not solution.refused
    np.testing.assert_allclose(solution.scales["a"], 2.0**-4, rtol=1e-5)


def test_channels_that_are_too_small_are_raised_alone():
    relation = ScaleConstraint(
        ScaleBound(WEIGHT_TO_OUTPUT, 2.0**-8, 2.0**8), ("a",), "b", np.array([1.0, 2.0**-20])
    )
    solution = solve({"a": 1.0, "b": 1.0}, (), [relation])
    assert solution.scales == {"a": 1.0, "b": 1.0}
    weights = relation.channels(solution.scales)
    np.testing.assert_allclose(weights, [1.0, 2.0**-8], rtol=1e-5)


def test_of_a_matmul_of_two_the_first_is_increased():
    relation = ScaleConstraint(ScaleBound(INPUTS_TO_OUTPUT, 2.0**-4, 2.0**4), ("a", "b"), "c")
    solution = solve({"a": 2.0**-5, "b": 2.0**-5, "c": 1.0}, (), [relation])
    np.testing.assert_allclose(solution.scales["a"], 2.0, rtol=1e-5)
    assert (solution.scales["b"], solution.scales["c"]) == (2.0**-5, 1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=15))
def test_sharing_is_the_closure_of_what_was_joined(pairs):
    sharing: UnionFind[int] = UnionFind()
    sets = [{n} for n in range(10)]
    for a, b in pairs:
        sharing.union((a, b))
        union = sets[a] | sets[b]
        for n in union:
            sets[n] = union
    for a in range(10):
        for b in range(10):
            assert (sharing.find(a) == sharing.find(b)) == (b in sets[a])
