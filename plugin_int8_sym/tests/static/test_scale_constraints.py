"""Scales that keep limits: against exhaustive search, and with limits that cannot be kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowpass.runtime.quantization import (
    INPUT_TO_OUTPUT,
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    ScaleBound,
)
from narrowpass_int8_sym.static.parameters import UnionFind
from narrowpass_int8_sym.static.scale_constraints import ScaleConstraint, solve

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


@pytest.mark.parametrize(
    ("inputs", "output", "least", "solved"),
    [
        # a · b / c within 2⁻⁴ and 2⁴: a, or c, is increased.
        (("a", "b"), "c", {"a": 2.0, "b": 0.25, "c": 32.0}, {"a": 8.0}),
        (("a", "b"), "c", {"a": 8.0, "b": 64.0, "c": 4.0}, {"c": 32.0}),
        (("a", "b"), "c", {"a": 8.0, "b": 4.0, "c": 4.0}, {}),
        (("a", "a"), "c", {"a": 16.0, "b": 1.0, "c": 4.0}, {"c": 16.0}),
    ],
)
def test_matmuls_of_two(inputs, output, least, solved):
    relation = ScaleConstraint(
        ScaleBound(INPUTS_TO_OUTPUT, 2.0**-4, 2.0**4, closed=True), inputs, output
    )
    solution = solve(least, (), [relation], margin=0.0)
    assert solution.scales == {**least, **solved}
    assert not solution.refused


@pytest.mark.parametrize("slope", [0.25, -0.25, 4.0, -4.0, 0.0, 1.0])
@pytest.mark.parametrize("exponent", range(-9, 10, 3))
def test_both_branches_of_a_leaky_relu_are_within_limits(slope, exponent):
    """Of a slope of 0 the branch has no ratio. The oracle tries every power of two."""
    bound = ScaleBound(INPUT_TO_OUTPUT, 2.0**-4, 2.0**4, closed=True)
    relation = ScaleConstraint(bound, ("a",), "b", slope=slope)
    least = {"a": 2.0**exponent, "b": 1.0}
    parts = [part for part in (1.0, abs(slope)) if part]

    def holds(a, b):
        return all(2.0**-4 <= a * part / b <= 2.0**4 for part in parts)

    powers = [2.0**n for n in range(-12, 13)]
    good = [(a, b) for a in powers for b in powers if a >= least["a"] and b >= 1 and holds(a, b)]
    solution = solve(least, (), [relation], margin=0.0)
    assert (solution.scales["a"], solution.scales["b"]) == (
        min(a for a, _ in good),
        min(b for _, b in good),
    )
    assert relation.violation(solution.scales) is None
    assert (relation.violation(least) is None) == holds(least["a"], 1.0)


@pytest.mark.parametrize("ratio", [INPUT_TO_OUTPUT, INPUTS_TO_OUTPUT, WEIGHT_TO_OUTPUT])
def test_scales_keep_a_distance_from_limits(ratio):
    """So that what is rounded to float32 afterwards is within them, also where they are open."""
    relation = ScaleConstraint(ScaleBound(ratio, 0.5, 4.0), ("a",), "b")
    above = solve({"a": 16.0, "b": 1.0}, (), [relation]).scales
    assert above == {"a": 16.0, "b": 4.0 / (1 - 2.0**-20)}
    if ratio != WEIGHT_TO_OUTPUT:  # where the weight is increased, if there is one
        below = solve({"a": 1.0, "b": 16.0}, (), [relation]).scales
        assert below == {"a": 8.0 * (1 + 2.0**-20), "b": 16.0}


def test_the_least_scales_of_a_weight():
    bound = ScaleBound(WEIGHT_TO_OUTPUT, 0.25, 8.0, closed=True)
    weights, accumulators = np.array([1.0, 4.0]), np.array([8.0, 2.0])
    scales = {"a": 2.0, "b": 16.0, "c": 1024.0}  # that of a second operand counts for nothing

    def found(bound, output, accumulators):
        relation = ScaleConstraint(bound, ("a", "c"), output, weights, accumulators)
        return relation.channels(scales, 0.0).tolist()

    assert found(None, "b", None) == [1.0, 4.0]
    assert found(None, "b", accumulators) == [4.0, 4.0]
    assert found(bound, None, None) == [1.0, 4.0]
    assert found(bound, "b", None) == [2.0, 4.0]
    assert found(bound, "b", accumulators) == [4.0, 4.0]
    assert found(ScaleBound(INPUT_TO_OUTPUT, 0.25, 8.0), "b", None) == [1.0, 4.0]
    assert ScaleConstraint(bound, ("a",), "b").channels(scales) is None
    relation = ScaleConstraint(bound, ("a",), "b", weights)
    np.testing.assert_array_equal(relation.channels(scales), [2.0 * (1 + 2.0**-20), 4.0])


def test_increased_channels_count_for_the_output():
    """A bias that needs a larger weight needs a larger result, too."""
    bound = ScaleBound(WEIGHT_TO_OUTPUT, 0.0, 8.0, closed=True)
    relation = ScaleConstraint(bound, ("a",), "b", np.array([1.0]), np.array([64.0]))
    assert solve({"a": 2.0, "b": 1.0}, (), [relation], margin=0.0).scales == {"a": 2.0, "b": 8.0}


@pytest.mark.parametrize("output", [None, "b"])
def test_what_has_no_bound_or_no_scale_of_a_result_asks_for_nothing(output):
    bound = None if output else ScaleBound(INPUT_TO_OUTPUT, 1.0, 2.0)
    relation = ScaleConstraint(bound, ("a",), output)
    scales = {"a": 64.0, "b": 1.0}
    solution = solve(scales, (), [relation])
    assert (solution.scales, solution.refused) == (scales, {})
    assert relation.violation(scales) is None


def test_a_circle_refuses_one_of_its_constraints():
    """Each asks for twice the scale of the other: without one of them the rest is satisfied."""
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.0, 0.5, closed=True)
    one, two = ScaleConstraint(bound, ("a",), "b"), ScaleConstraint(bound, ("b",), "a")
    other = ScaleConstraint(bound, ("a",), "c")
    solution = solve({"a": 1.0, "b": 1.0, "c": 1.0}, (), [other, one, two], margin=0.0)
    ((refused, violation),) = solution.refused.items()
    assert refused in (one, two)
    assert (violation.measured, violation.limit) == (1.0, 0.5)  # by the scales that there were
    kept = {"a": 1.0, "b": 2.0} if refused is two else {"a": 2.0, "b": 1.0}
    assert solution.scales == {**kept, "c": 2 * kept["a"]}


def test_a_circle_that_only_the_margin_drives_is_refused():
    """Ratios of exactly 1 both ways: the scales as they are keep the limits."""
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.0, 1.0, closed=True)
    one, two = ScaleConstraint(bound, ("a",), "b"), ScaleConstraint(bound, ("b",), "a")
    solution = solve({"a": 1.0, "b": 1.0}, (), [one, two])
    assert len(solution.refused) == 1
    (violation,) = solution.refused.values()
    assert violation.limit == 1.0
    assert violation.measured > 1.0
    exact = solve({"a": 1.0, "b": 1.0}, (), [one, two], margin=0.0)
    assert not exact.refused


def test_a_fixed_scale_within_the_margin_of_a_limit_is_refused():
    """Though no ratio is outside of the limit: what is measured is not a number of the model."""
    relation = ScaleConstraint(ScaleBound(INPUT_TO_OUTPUT, 0.0, 4.0), ("a",), "b")
    solution = solve({"a": 4.0 * (1 - 2.0**-21), "b": 1.0}, ("b",), [relation])
    (violation,) = solution.refused.values()
    assert (violation.measured, violation.limit) == (np.inf, 4.0)


def test_a_chain_takes_a_round_for_each_scale():
    """Against the order of the constraints, so that each round increases one scale."""
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.0, 0.5, closed=True)
    relations = [ScaleConstraint(bound, (n,), n + 1) for n in range(20)]
    solution = solve(dict.fromkeys(range(21), 1.0), (), relations[::-1], margin=0.0)
    assert solution.scales == {n: 2.0**n for n in range(21)}
    assert not solution.refused


def test_scales_of_no_usable_model_are_refused():
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.0, 1.0, closed=True)
    relation = ScaleConstraint(bound, ("a",), "b")
    most = {"a": 2.0**100, "b": 1.0}
    assert solve(most, (), [relation], margin=0.0).scales["b"] == 2.0**100
    solution = solve({"a": 2.0**101, "b": 1.0}, (), [relation], margin=0.0)
    assert list(solution.refused) == [relation]
    assert solution.scales == {"a": 2.0**101, "b": 1.0}


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
