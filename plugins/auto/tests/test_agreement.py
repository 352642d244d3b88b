"""How likely classes are to move: against drawn rows, and against SciPy's binomial tests."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest

from narrowpass_auto.agreement import CONFIDENCE, Margins, proven_agreement, rows_to_prove
from narrowpass_auto.limits import Limit
from narrowpass_auto.measure.evaluation import Evaluation, likely_error


def _rows(count, noise, seed, classes=10):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((count, classes))
    return right, right + noise * rng.standard_normal(right.shape)


def _moved(right, other):
    return float(np.mean(right.argmax(-1) != other.argmax(-1)))


@pytest.mark.parametrize("as_probabilities", [False, True])
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_few_rows_hardly_promise_more_than_many_keep(noise, as_probabilities):
    """Margins of 40 normal logits are rarer the larger they are, which is the harder case.

    A normal quantity is above its mean less two standard deviations in 97.7 % of draws; 90 % are
    asked for, since shares of rows are not normal.
    """
    share = _moved(*_rows(100_000, noise, 1))
    chances, promised = [], 0
    for seed in range(100):
        margins = Margins()
        pair = [softmax(r, -1) if as_probabilities else r for r in _rows(64, noise, 2 + seed)]
        for right, other in zip(*pair, strict=True):
            margins.add(right, other)
        chances.append(margins.chance())
        found = Evaluation(0.0, 0.0, None, 0, tuple(margins.chances()), margins.chance())
        promised += likely_error(found, is_mean=True) >= share
    assert 0.9 * share <= np.mean(chances) <= 2.0 * share
    assert promised >= 90


def test_rows_that_agree_by_luck_are_expected_to_move():
    """None of these rows moves, but their margins are as small as the noise."""
    right = np.array([[1.0, 0.9], [0.0, 0.1]] * 4)
    other = right + np.array([[0.1, 0.0], [-0.1, 0.0]] * 4)
    meter = Limit.parse("top1:0.99").meter()
    for a, b in zip(right, other, strict=True):
        meter.add({"y": a[None]}, {"y": b[None]})
    assert meter.error == 0.0
    # One standard deviation of a normal: 0.1587.
    assert meter.expected == pytest.approx(0.158655, abs=1e-5)
    assert meter.errors == pytest.approx([0.158655] * 8, abs=1e-5)
    found = Evaluation(meter.error, 0.0, None, 0, meter.errors, meter.expected, meter.rows)
    assert likely_error(found, is_mean=True) == pytest.approx(0.158655, abs=1e-5)


def test_margins_of_what_has_none():
    margins = Margins()
    margins.add(np.zeros((0, 3)), np.zeros((0, 3)))
    margins.add(np.array([[np.nan, 1.0], [np.inf, 0.0]]), np.zeros((2, 2)))
    assert margins.chances() == [None, None]
    assert margins.chance() == 0.0
    margins.add(np.eye(4), np.eye(4))
    assert margins.chances() == [None, None, 0.0]


@pytest.mark.parametrize(("agreeing", "rows"), [(12, 12), (63, 64), (999, 1000), (0, 5)])
def test_proven_agreement_is_that_of_an_exact_test(agreeing, rows):
    test = binomtest(agreeing, rows, alternative="greater")
    wanted = test.proportion_ci(CONFIDENCE, method="exact").low
    assert proven_agreement(agreeing, rows) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_fewest_rows_that_prove_a_share(share):
    rows = rows_to_prove(share)
    assert proven_agreement(rows, rows) >= share
    assert rows == 1 or proven_agreement(rows - 1, rows - 1) < share


def test_classes_that_are_integers_have_no_margins():
    meter = Limit.parse("top1:0.9").meter()
    meter.add({"class": np.array([1, 2, 3, 4])}, {"class": np.array([1, 2, 3, 5])})
    assert (meter.error, meter.expected, meter.errors) == (0.25, 0.0, (0.25,))
