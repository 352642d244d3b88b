"""The search against functions that say what a run of a whole model would show."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from auto_kit import offer, synthetic

from narrowpass.errors import BackendError
from narrowpass_auto.choice.problem import KEEP, Weights
from narrowpass_auto.choice.search import Search
from narrowpass_auto.limits import Limit
from narrowpass_auto.measure.evaluation import Evaluation, likely_error

LATENCY = Weights(1.0, 0.0)
COSTS = [
    {"fast": offer(harm, 0.2, 30), "good": offer(harm / 50, 0.5, 60)}
    for harm in (0.02, 0.3, 0.01, 0.05, 0.6, 0.03, 0.02, 0.04)
]


class Model:
    """A model of which everything is known: times, bytes and noise of nodes add."""

    def __init__(self, costs=COSTS, *, gain=1.0, extra=0.0, slower=1.0, true=None):
        self.costs, self.true = costs, costs if true is None else true
        self.gain, self.extra, self.slower = gain, extra, slower
        self.runs = []
        self.offers = synthetic(costs)

    def found(self, choice):
        taken = [
            {KEEP: offer(), **given}[name] for given, name in zip(self.true, choice, strict=True)
        ]
        noise = self.gain * sum(one.harm[0] for one in taken)
        ratio = self.slower * sum(one.seconds for one in taken) / len(taken)
        return Evaluation(noise, noise, ratio, sum(one.bytes for one in taken))

    def evaluate(self, choice):
        self.runs.append(choice)
        return self.found(choice)

    def compare(self, choices):
        return [self.found(choice).ratio for choice in choices]

    def prove(self, choice):
        self.runs.append(choice)
        found = self.found(choice)
        return Evaluation(found.error + self.extra, found.noise, found.ratio, found.bytes)

    def search(self, limit, objective=LATENCY, evaluations=20):
        search = Search(
            self.offers,
            100 * len(self.costs),
            limit,
            objective,
            True,
            evaluations,
            self.evaluate,
            self.compare,
            self.prove,
            lambda what, done: None,
        )
        return search.run()

    def best(self, bound):
        """Return the least ratio of all choices within a bound."""
        choices = itertools.product(*({KEEP: None, **given} for given in self.costs))
        found = map(self.found, choices)
        return min(one.ratio for one in found if one.error <= bound)


@pytest.mark.parametrize("bound", [0.02, 0.05, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("gain", [0.2, 1.0, 3.0])
def test_the_result_is_near_the_best_of_all(bound, gain):
    """Within 0.8 of the limit, at which the search aims, the best of all 6,561 choices."""
    model = Model(gain=gain)
    outcome = model.search(Limit("kl", bound))
    assert outcome.proof.error <= bound
    assert outcome.proof.ratio <= model.best(0.75 * bound) * 1.02
    assert len(model.runs) <= 20


@pytest.mark.parametrize("evaluations", [4, 6, 10])
def test_evaluations_are_the_most_runs(evaluations):
    model = Model()
    outcome = model.search(Limit("kl", 0.1), evaluations=evaluations)
    assert len(model.runs) <= evaluations
    assert outcome.chosen is None or outcome.proof.error <= 0.1


def test_a_loose_limit_takes_the_fastest_at_once():
    model = Model()
    outcome = model.search(Limit("kl", 100.0))
    assert outcome.chosen.choice == ("fast",) * 8
    assert len(model.runs) <= 4


def test_limit_that_nothing_meets():
    model = Model()
    outcome = model.search(Limit("kl", 1e-9))
    assert outcome.chosen is None
    assert "kl" in outcome.why


def test_what_fails_on_other_samples_is_taken_back():
    model = Model(extra=0.03)
    outcome = model.search(Limit("kl", 0.1))
    assert outcome.chosen is None or outcome.proof.error <= 0.1
    model = Model(extra=1.0)
    outcome = model.search(Limit("kl", 0.1))
    assert outcome.chosen is None
    assert "held out" in outcome.why


def test_the_search_goes_on_where_a_candidate_errs_more_on_samples_held_out():
    """Ranges of few samples are too narrow for others: its neighbour does not observe any."""

    class Observing(Model):
        def prove(self, choice):
            found = super().prove(choice)
            return replace(found, error=found.error * (8.0 if "fast" in choice else 1.0))

    costs = [{"fast": offer(0.01, 0.2, 30), "good": offer(0.01, 0.5, 60)}] * 8
    outcome = Observing(costs).search(Limit("kl", 0.1))
    assert outcome.chosen.choice == ("good",) * 8
    assert outcome.proof.error <= 0.1
    alone = Observing([{"fast": offer(0.01, 0.2, 30)}] * 8).search(Limit("kl", 0.1))
    assert alone.chosen.choice.count("fast") == 1
    assert alone.proof.error <= 0.1


def test_what_is_not_likely_to_hold_on_others_is_taken_back():
    """Those held out are within the limit, and differ so much that others are not likely to be."""

    class Uneven(Model):
        def prove(self, choice):
            found = super().prove(choice)
            return replace(found, errors=tuple(found.error * np.array([0.0, 0.1, 0.4, 3.5])))

        def found(self, choice):
            found = super().found(choice)
            return replace(found, errors=(found.error,) * 4)

    costs = [{"good": offer(0.01, 0.5, 60)}] * 8
    assert Model(costs).search(Limit("kl", 0.11)).chosen.choice == ("good",) * 8
    outcome = Uneven(costs).search(Limit("kl", 0.11))
    assert outcome.chosen is None
    assert "likely on other samples" in outcome.why


def test_what_is_slower_is_taken_back():
    """Kernels alone promise a gain that the whole model does not have."""
    model = Model(slower=6.0)
    outcome = model.search(Limit("kl", 10.0))
    assert outcome.chosen is None
    assert "times as long" in outcome.why


def test_bytes_are_minimized_and_nothing_is_slower():
    costs = [{"small": offer(0.01, 1.5, 10), "quick": offer(0.01, 0.5, 60)} for _ in range(4)]
    model = Model(costs)
    outcome = model.search(Limit("kl", 1.0), Weights(0.0, 1.0))
    assert outcome.proof.bytes == 2 * 10 + 2 * 60
    assert outcome.proof.ratio <= 1.0


def test_what_kernels_say_within_their_noise_is_left_to_runs():
    """Alone, the small kernels took 1.05 times as long; in a model they take 0.95 times."""
    costs = [{"small": offer(0.01, 1.05, 10)} for _ in range(4)]
    true = [{"small": offer(0.01, 0.95, 10)} for _ in range(4)]
    outcome = Model(costs, true=true).search(Limit("kl", 1.0), Weights(0.0, 1.0))
    assert outcome.chosen.choice == ("small",) * 4


def test_what_runs_say_is_slower_is_slower():
    """Bytes are what is left to lose once no kernel may be slower."""
    costs = [{"small": offer(0.01, 1.05, 10), "quick": offer(0.01, 0.5, 60)} for _ in range(4)]
    costs += [{"small": offer(0.01, 1.08, 10)} for _ in range(8)]
    outcome = Model(costs).search(Limit("kl", 1.0), Weights(0.0, 1.0))
    assert outcome.proof.ratio <= 1.0
    assert outcome.proof.bytes < 12 * 100


def test_a_candidate_that_cannot_be_run_is_left_out():
    class Broken(Model):
        def evaluate(self, choice):
            if "fast" in choice:
                raise BackendError("no kernel")
            return super().evaluate(choice)

    outcome = Broken().search(Limit("kl", 10.0))
    assert outcome.chosen.choice == ("good",) * 8


def test_times_of_whole_models_correct_those_of_kernels():
    """`fast` takes twice as long in a model as alone, so that `good` is better."""
    true = [{"fast": offer(0.0, 0.9, 30), "good": offer(0.0, 0.5, 60)}] * 6
    costs = [{"fast": offer(0.0, 0.4, 30), "good": offer(0.0, 0.5, 60)}] * 6
    outcome = Model(costs, true=true).search(Limit("kl", 10.0))
    assert outcome.chosen.choice == ("good",) * 6


def test_what_promises_no_gain_that_can_be_measured_is_not_run():
    # "Good" is within the limit everywhere; "fine" saves a thousandth, and not all of it fits.
    costs = [
        {"good": offer(0.01, 0.2, 30), "fine": offer(0.05 + 0.01 * node, 0.1998, 30)}
        for node in range(8)
    ]
    model = Model(costs)
    found = model.search(Limit("kl", 0.3))
    assert found.chosen.choice == ("good",) * 8
    # Each candidate everywhere; the fastest, which is the second of them; the proof.
    assert len(model.runs) == 3


def likely(*errors, is_mean=False):
    worst = float(np.mean(errors) if is_mean else max(errors))
    return likely_error(Evaluation(worst, 0.0, None, 0, errors), is_mean=is_mean)


def test_likely_error_of_the_worst_is_that_of_as_many_other_samples():
    """Other samples exceed it in 1 of 100 draws, and in 3 where few logarithms show the spread."""
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(400):
        seen, others = np.exp(rng.normal(-5.0, 0.3, (2, 32)))
        exceeded += others.max() > likely(*seen.tolist())
    assert 0 < exceeded <= 12 + 3 * 12**0.5  # 3 of 100, and three deviations of the count
    assert likely(*[0.01] * 8) == pytest.approx(0.01)
    assert likely(0.01, 0.002) == pytest.approx(0.0125)  # too few to say
    assert likely(0.1, 0.1, math.inf) == math.inf
    assert likely(0.0, 0.0, 0.0, 0.0) == 0.0


def test_likely_error_of_a_mean_is_that_of_as_many_other_samples():
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(400):
        seen, other = rng.gamma(4.0, 0.01, (2, 30))
        exceeded += other.mean() > likely(*seen.tolist(), is_mean=True)
    # Means of skewed errors are not quite normal: 3 of 100, too.
    assert 0 < exceeded <= 12 + 3 * 12**0.5
    assert likely(0.0, 0.0, 0.0, is_mean=True) == 0.0


def test_errors_that_differ_between_samples_need_more_distance_to_the_limit():
    """All samples are within the limit with "good", and others are not likely to be."""

    class Uneven(Model):
        def found(self, choice):
            found = super().found(choice)
            return replace(found, errors=tuple(found.error * np.array([0.05, 0.1, 0.4, 1.0])))

    costs = [{"good": offer(0.01, 0.5, 60)}] * 8
    assert Model(costs).search(Limit("rel", 0.11)).chosen.choice == ("good",) * 8
    chosen = Uneven(costs).search(Limit("rel", 0.11)).chosen
    assert chosen is None or chosen.choice.count("good") < 5


def test_the_search_goes_on_where_the_fastest_cannot_be_run():
    class Broken(Model):
        def evaluate(self, choice):
            if choice.count("fast") == 7 and "good" in choice:
                raise BackendError("no kernel")
            return super().evaluate(choice)

    costs = [{"fast": offer(0.02, 0.2 + 0.1 * (node % 2), 30)} for node in range(7)]
    costs.append({"good": offer(0.001, 0.5, 60)})
    outcome = Broken(costs).search(Limit("kl", 0.1))  # 7 times 0.02 is beyond it
    assert outcome.chosen.choice.count("fast") >= 3


def test_the_best_are_timed_again_with_each_other():
    """A run of "good" was slowed by something else, so that "fast" seemed better."""

    class Busy(Model):
        def evaluate(self, choice):
            found = super().evaluate(choice)
            return replace(found, ratio=1.9 * found.ratio) if choice == ("good",) * 4 else found

    costs = [{"fast": offer(0.0, 0.3, 30), "good": offer(0.0, 0.2, 60)}] * 4
    outcome = Busy(costs).search(Limit("kl", 10.0))
    assert outcome.chosen.choice == ("good",) * 4
    assert outcome.chosen.found.ratio == pytest.approx(0.2)
