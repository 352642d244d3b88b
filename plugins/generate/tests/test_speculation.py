"""Drafted tokens change neither greedy results nor distributions."""

from __future__ import annotations

import numpy as np
import pytest
from generate_kit import table_program
from llama_kit import Shape, program_of

from narrowpass.errors import DataError, UsageError
from narrowpass_generate import Sampling, generate
from narrowpass_generate.sampling import Candidates, Sampler
from narrowpass_generate.speculation import Lookup, verify

PROMPT = [3, 17, 40, 3, 17, 40, 3, 17]


@pytest.mark.parametrize("backend", ["reference", "xnn-cpu"])
def test_greedy_is_as_without_drafts(backend):
    count = 40
    small = Shape(layers=1)
    with program_of(backend) as program, program_of(backend, small) as draft:
        plain = generate(program, PROMPT, tokens=count)
        looked_up = generate(program, PROMPT, tokens=count, lookup=4)
        drafted = generate(program, PROMPT, tokens=count, draft=draft, drafted=3)
        itself = generate(program, PROMPT, tokens=count, draft=program, drafted=3)
    assert looked_up.tokens == drafted.tokens == itself.tokens == plain.tokens
    assert plain.drafted == 0
    assert looked_up.drafted > 0
    assert drafted.drafted > 0
    assert itself.accepted == itself.drafted > 0  # the same model is right each time


def test_lookup_accepts_what_repeats():
    """Token n is followed by n + 1, and 9 by 0: after one round all is known."""
    table = np.roll(np.eye(10), 1, 1) * 9
    with table_program(table) as program:
        result = generate(program, [0, 1], tokens=50, lookup=5)
    assert result.tokens == tuple((2 + i) % 10 for i in range(50))
    assert result.accepted == result.drafted > 30


def test_lookup_takes_the_longest_and_last():
    lookup = Lookup(3)
    assert lookup.propose([1, 2, 3], 9) == []
    ids = [1, 2, 3, 7, 7, 7, 5, 2, 3, 8, 1, 2, 3]
    assert [token for token, _ in lookup.propose(ids, 9)] == [7, 7, 7]
    assert [token for token, _ in lookup.propose([*ids, 8, 9, 9, 9, 2, 3], 2)] == [8, 9]
    assert [token for token, _ in lookup.propose([*ids, 8, 9, 9, 9, 2, 3, 8], 9)] == [9, 9, 9]


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_penalties_hold_for_drafts(penalty):
    table = np.roll(np.eye(10), 1, 1) * 9 + np.random.default_rng(0).random((10, 10))
    sampling = Sampling(repetition_penalty=penalty)
    with table_program(table) as program:
        plain = generate(program, [0, 1, 2, 0, 1], sampling, tokens=30)
        for options in ({"lookup": 4}, {"draft": program}):
            result = generate(program, [0, 1, 2, 0, 1], sampling, tokens=30, **options)
            assert result.tokens == plain.tokens


@pytest.mark.parametrize("draft", ["other", "certain"])
def test_accepted_and_rejected_draws_follow_the_model(draft):
    """Leviathan et al. 2023, theorem 1: whatever the draft's distribution, that of the model."""
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((2, 6)).astype(np.float32)
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    q = np.array([0.5, 0.3, 0.1, 0.1, 0.0, 0.0])
    proposed = Candidates(np.arange(6), q) if draft == "other" else Candidates.certain(2)
    sampler = Sampler(Sampling(temperature=1.0, seed=1))
    counts = np.zeros(6)
    for _ in range(20_000):
        token = proposed.draw(sampler.numbers)
        counts[verify(logits, [(token, proposed)], sampler)[0]] += 1
    assert ((counts - p * 20_000) ** 2 / (p * 20_000)).sum() < 20.5  # 5 degrees of freedom
    assert ((counts - q * 20_000) ** 2 / (p * 20_000)).sum() > 1000  # not the draft's


@pytest.mark.parametrize("options", [{"lookup": 3}, {"draft": True}], ids=["lookup", "draft"])
def test_sampled_tokens_follow_the_models_table(options):
    rng = np.random.default_rng(1)
    table = rng.standard_normal((6, 6)) * 1.5
    with table_program(table) as program, table_program(table + rng.random((6, 6))) as other:
        options = {"draft": other, "drafted": 2} if "draft" in options else options
        result = generate(
            program, [0, 1], Sampling(temperature=1.0, top_k=5, seed=2), tokens=4000, **options
        )
    assert 0 < result.accepted < result.drafted
    ids = [1, *result.tokens]
    counts = np.zeros((6, 6))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    weights = np.exp(table)
    weights[np.arange(6), table.argmin(1)] = 0  # top_k = 5
    expected = counts.sum(1, keepdims=True) * weights / weights.sum(1, keepdims=True)
    assert (counts[weights == 0] == 0).all()
    kept = weights > 0
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert statistic < 51.2  # 24 degrees of freedom, one in 1,000


def test_end_tokens_among_drafts():
    table = np.roll(np.eye(10), 1, 1) * 9
    with table_program(table) as program:
        for count in range(1, 25):
            result = generate(program, [0, 1], tokens=count, lookup=5)
            assert len(result.tokens) == count
        result = generate(program, [*range(10), 0, 1], tokens=50, lookup=5, ends=[5])
    assert result.tokens == (2, 3, 4, 5)


def test_what_cannot_be_verified():
    error = pytest.raises(UsageError, match=r"'decode' takes one token only; export it with")
    with program_of(rows=1) as program, error:
        generate(program, PROMPT, lookup=3)
    with program_of() as program, program_of(shape=Shape(vocabulary=50)) as other:
        with pytest.raises(DataError, match="50 logits and the model 64"):
            generate(program, PROMPT, draft=other)
        with pytest.raises(UsageError, match="not by both"):
            generate(program, PROMPT, draft=other, lookup=3)
        with pytest.raises(UsageError, match="`lookup` must be at least 0"):
            generate(program, PROMPT, lookup=-1)
