"""Distributions beside transformers' logits processors and numpy by hand; draws by chi-square."""

from __future__ import annotations

import numpy as np
import pytest
from generate_kit import table_program

from narrowpass.errors import DataError, UsageError
from narrowpass_generate import Sampling, generate
from narrowpass_generate.sampling import Candidates, Sampler

SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 20},
    {"top_k": 1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_p": 1e-30},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3},
    {"temperature": 1.7, "top_k": 100, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.2},
]
SEEN = [5, 9, 9, 400]


def logits_of(vocabulary: int = 1000) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(vocabulary) * 3).astype(np.float32)


def dense(candidates: Candidates, vocabulary: int) -> np.ndarray:
    found = np.zeros(vocabulary)
    found[candidates.ids] = candidates.probabilities
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_distributions_are_those_of_transformers(settings):
    """float32 there, float64 here: 1e-5 of each probability, and the same tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logits = logits_of()
    sampling = Sampling(**{"temperature": 1.0, **settings})
    steps = [
        transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        transformers.TemperatureLogitsWarper(sampling.temperature),
        transformers.TopKLogitsWarper(sampling.top_k or len(logits)),
        transformers.TopPLogitsWarper(sampling.top_p),
        transformers.MinPLogitsWarper(sampling.min_p),
    ]
    scores = transformers.LogitsProcessorList(steps)(
        torch.tensor([SEEN]), torch.tensor(logits)[None]
    )
    expected = torch.softmax(scores[0].double(), -1).numpy()
    found = dense(Sampler(sampling, SEEN).candidates(logits), len(logits))
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def by_hand(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the distribution by the definitions, with sorted float64 numbers."""
    scores = logits.astype(np.float64)
    for token in set(SEEN):
        factor = sampling.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    scores /= sampling.temperature
    order = np.argsort(-scores)
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = np.exp(scores[order] - scores[order[0]])
    before = (np.cumsum(weights) - weights) / weights.sum()
    kept = (before < sampling.top_p) & (weights >= sampling.min_p)
    found = np.zeros(len(logits))
    found[order[kept]] = weights[kept] / weights[kept].sum()
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [500, 30_000])
def test_distributions_are_those_of_the_definitions(settings, vocabulary):
    """Weights are float32 here: 1e-5 of each probability."""
    logits = logits_of(vocabulary)
    sampling = Sampling(**{"temperature": 1.0, **settings})
    found = dense(Sampler(sampling, SEEN).candidates(logits), vocabulary)
    expected = by_hand(logits, sampling)
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


MOST = 27.9
"""The chi-square of 9 degrees of freedom that one in 1,000 draws exceeds; seeds are fixed."""


def test_draws_follow_the_distribution():
    probabilities = np.arange(1, 11) / 55
    sampler = Sampler(Sampling(temperature=1.0, seed=0))
    logits = np.log(probabilities).astype(np.float32)
    drawn = np.bincount([sampler.choose(logits) for _ in range(20_000)], minlength=10)
    assert chi_square(drawn, probabilities * 20_000) < MOST
    # The test can fail: one of twentieth of the draws moved to another token is noticed.
    drawn[9] -= 300
    drawn[0] += 300
    assert chi_square(drawn, probabilities * 20_000) > MOST


def test_generated_tokens_follow_the_models_table():
    rng = np.random.default_rng(1)
    table = rng.standard_normal((10, 10))
    with table_program(table) as program:
        result = generate(program, [0], Sampling(temperature=1.0, seed=2), tokens=3000)
    ids = [0, *result.tokens]
    counts = np.zeros((10, 10))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    weights = np.exp(table)
    expected = counts.sum(1, keepdims=True) * weights / weights.sum(1, keepdims=True)
    assert chi_square(counts, expected) < 137.2  # of 90 degrees of freedom, one in 1,000


def test_seeds():
    table = np.zeros((50, 50))
    with table_program(table) as program:

        def tokens(seed):
            return generate(program, [0], Sampling(temperature=1.0, seed=seed), tokens=20).tokens

        assert tokens(1) == tokens(1)
        assert tokens(1) != tokens(2)
        assert tokens(None) != tokens(None)


def test_the_coldest_temperature_is_greedy():
    logits = logits_of()
    for temperature in (1e-300, 1e-20, 5e-324):
        sampler = Sampler(Sampling(temperature=temperature, seed=0))
        assert sampler.choose(logits) == logits.argmax()


def test_penalties_count_generated_tokens():
    """A model that prefers token 1 after all, by less than the penalty."""
    table = np.tile(np.array([1.0, 3.0, 2.0, 0.5]), (4, 1))
    with table_program(table) as program:
        result = generate(program, [0], Sampling(repetition_penalty=2.0), tokens=3)
    assert result.tokens == (1, 2, 1)  # 3; 2 beside 1.5; 1.5 beside 1, 0.5 and 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "`temperature` must be a number at least 0"),
        ({"temperature": float("nan")}, "`temperature`"),
        ({"temperature": float("inf")}, "`temperature`"),
        ({"temperature": "hot"}, "'hot'"),
        ({"temperature": True}, "not True"),
        ({"top_k": -1}, "`top_k` must be at least 0"),
        ({"top_k": 1.5}, "whole number"),
        ({"top_p": 0}, "`top_p` must be a number above 0"),
        ({"top_p": 1.1}, "at most 1"),
        ({"min_p": 2}, "`min_p`"),
        ({"repetition_penalty": 0}, "`repetition_penalty`"),
        ({"seed": -3}, "`seed`"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UsageError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers(value, temperature):
    table = np.zeros((4, 4))
    table[1, 2] = value
    with table_program(table) as program, pytest.raises(DataError, match="logits have"):
        generate(program, [1], Sampling(temperature=temperature), tokens=2)
