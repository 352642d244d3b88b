"""The integer program against all choices, one by one."""

import itertools
import math

import numpy as np
import pytest

from narrowpass_auto.choice.problem import KEEP, Cost, Link, Problem, Weights


def _random(seed, regions=5, samples=2):
    rng = np.random.default_rng(seed)
    names = ["a", "b"]
    costs = []
    for _ in range(regions):
        found = {KEEP: Cost(1.0, 0.0, 0.0, 100.0, (0.0,) * samples)}
        for name in names:
            if rng.random() < 0.8:
                noise = tuple(rng.random(samples))
                found[name] = Cost(rng.uniform(0.1, 1.3), 0.1, 0.1, rng.uniform(10, 90), noise)
        costs.append(found)
    links = [
        Link(
            region, frozenset({region - 1}), {name: 0.2 for name in names if name in costs[region]}
        )
        for region in range(1, regions)
    ]
    return Problem(costs, links)


def _best(problem, weights, budget, slowest):
    """Return the least objective of all choices that keep the bounds."""
    least = math.inf
    for choice in itertools.product(*(list(costs) for costs in problem.costs)):
        total = problem.total(choice)
        if max(total.noise) <= budget and (slowest is None or total.seconds <= slowest):
            least = min(least, weights.seconds * total.seconds + weights.bytes * total.bytes)
    return least


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("weights", [Weights(1.0, 0.0), Weights(0.0, 1.0), Weights(1.0, 0.01)])
@pytest.mark.parametrize("budget", [0.3, 1.0, 2.0, math.inf])
def test_the_choice_is_the_best_of_all(seed, weights, budget):
    problem = _random(seed)
    slowest = problem.total(problem.keep()).seconds
    choice = problem.solve(weights, budget, slowest=slowest)
    total = problem.total(choice)
    assert max(total.noise) <= budget * (1 + 1e-6)
    assert total.seconds <= slowest * (1 + 1e-6)
    found = weights.seconds * total.seconds + weights.bytes * total.bytes
    # HiGHS ends within 1e-4 of the optimum.
    assert found <= _best(problem, weights, budget, slowest) * (1 + 2e-4) + 1e-9


def test_without_budget_nothing_changes():
    problem = _random(3)
    assert problem.solve(Weights(1.0, 1e-6), 0.0) == problem.keep()


def test_what_has_infinite_noise_is_never_chosen():
    costs = [{KEEP: Cost(1, 0, 0, 9, (0.0,)), "a": Cost(0, 0, 0, 1, (math.inf,))}]
    assert Problem(costs).solve(Weights(1.0, 1.0), math.inf) == (KEEP,)


def test_conversions_are_spared_between_neighbours():
    """Alone a region loses by converting; together they win."""
    narrow = Cost(1.1, 0.3, 0.3, 50, (0.0,))
    wide = Cost(1.0, 0, 0, 100, (0.0,))
    costs = [{KEEP: wide, "a": narrow}] * 3
    alone = Problem(costs)
    assert alone.solve(Weights(1.0, 0.0), math.inf) == alone.keep()
    spared = {"a": 0.3}
    links = [Link(region, frozenset({region - 1}), spared) for region in (1, 2)]
    links += [Link(region, frozenset({region + 1}), spared) for region in (0, 1)]
    assert Problem(costs, links).solve(Weights(1.0, 0.0), math.inf) == ("a", "a", "a")
