"""Greedy tokens beside onnx's evaluator, which runs the whole sequence anew for each token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from llama_kit import FORMS, Oracle, Shape, program_of

from narrowpass.errors import BackendError
from narrowpass_generate import Decoder, Sampling, generate, generate_all, stream

PROMPT = [3, 17, 40, 8, 25]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def expected(oracle) -> list[int]:
    found = oracle.greedy(PROMPT, 20)
    assert len(set(found)) > 5  # a loop of one token would hide errors of caches
    return found


@pytest.mark.parametrize("backend", ["reference", "xnn-cpu"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", ["S", 1])
@pytest.mark.parametrize("prefill", [True, False])
def test_greedy(expected, backend, form, rows, prefill):
    """Where a method takes one token, the prompt is run token by token without a prefill."""
    count = 20 if backend == "xnn-cpu" else 6
    with program_of(backend, form=form, rows=rows, prefill=prefill) as program:
        result = generate(program, PROMPT, tokens=count)
    assert list(result.tokens) == expected[:count]
    assert (result.finish_reason, result.prompt_tokens) == ("length", len(PROMPT))
    assert 0 < result.first_token <= result.seconds


def test_logits_of_each_form_are_the_oracles(oracle):
    """float32 accumulators in another order: 1e-4 of logits of about 10."""
    ids = [*PROMPT, 9, 9, 61]
    for form in FORMS:
        with program_of(form=form) as program, Decoder(program) as decoder:
            decoder.advance(PROMPT)
            rows = decoder.feed(ids[len(PROMPT) :])
            np.testing.assert_allclose(rows, oracle.logits(ids)[-3:], atol=1e-3)


def test_a_decoder_runs_only_what_is_new(oracle):
    with program_of() as program, Decoder(program) as decoder:
        decoder.advance(PROMPT)
        runs: list[int] = []
        run = decoder._run
        decoder._run = lambda roles, tokens: runs.append(len(tokens)) or run(roles, tokens)
        for ids in ([*PROMPT, 1, 2], [*PROMPT, 1, 2], [*PROMPT, 1, 5, 6], PROMPT[:2], [9, 9]):
            logits = decoder.advance(ids)
            np.testing.assert_allclose(logits, oracle.logits(ids)[-1], atol=1e-3)
            assert decoder.ids == tuple(ids)
        assert runs == [2, 1, 2, 1, 2]


def test_an_interrupted_run_does_not_spoil_the_next(oracle):
    """As if an interrupt came between the session's run and the ids that it is noted with."""
    with program_of() as program, Decoder(program) as decoder:
        decoder.advance(PROMPT)
        decoder._ids.pop()
        logits = decoder.advance([*PROMPT, 7])
        np.testing.assert_allclose(logits, oracle.logits([*PROMPT, 7])[-1], atol=1e-3)


def test_forks_and_reset(oracle):
    with program_of() as program, Decoder(program) as decoder:
        decoder.advance(PROMPT)
        other = decoder.fork()
        for each, token in ((decoder, 1), (other, 2)):
            expected = oracle.logits([*PROMPT, token])[-1]
            np.testing.assert_allclose(each.advance([*PROMPT, token]), expected, atol=1e-3)
        decoder.reset()
        assert decoder.ids == ()
        assert other.ids == (*PROMPT, 2)


def test_several_sequences():
    """The i-th is that of its seed, and two of them differ."""
    sampling = Sampling(temperature=1.5, seed=10)
    with program_of() as program:
        rows = generate_all(program, [PROMPT, [1, 2]], sampling, n=2, tokens=8)
        alone = [
            generate(program, prompt, Sampling(temperature=1.5, seed=10 + i), tokens=8).tokens
            for i, prompt in enumerate([PROMPT, PROMPT, [1, 2], [1, 2]])
        ]
    assert [each.tokens for row in rows for each in row] == alone
    assert len(set(alone)) == 4


@pytest.mark.parametrize("together", [1, 2, 8])
def test_sequences_at_once_are_those_of_one_after_the_other(together, expected, monkeypatch):
    """Sequences end after other numbers of tokens, and others begin then."""
    prompts = [PROMPT, [1, 2], [60, 5, 9, 9, 31, 2, 7], [12]]
    ends = [expected[6]]
    sampling = Sampling(temperature=0.9, top_k=20, seed=3)
    with program_of() as program:
        runs: list[int] = []
        run = program.run_sessions
        monkeypatch.setattr(
            program, "run_sessions", lambda s, *rest: runs.append(len(s)) or run(s, *rest)
        )
        for options in ({"ends": ends}, {"sampling": sampling, "n": 2, "ends": ends}):
            rows = generate_all(program, prompts, together=together, tokens=12, **options)
            count = options.pop("n", 1)
            given = options.pop("sampling", Sampling())
            places = range(len(prompts) * count)
            alone = [
                generate(
                    program,
                    prompts[place // count],
                    given if given.seed is None else replace(given, seed=given.seed + place),
                    tokens=12,
                    **options,
                )
                for place in places
            ]
            found = [each for row in rows for each in row]
            assert [each.tokens for each in found] == [each.tokens for each in alone]
            assert [e.finish_reason for e in found] == [e.finish_reason for e in alone]
            assert all(0 < each.first_token <= each.seconds for each in found)
        assert {each.finish_reason for each in found} == {"length", "stop"}
    assert max(runs, default=1) == min(together, 8)


def test_end_tokens(expected):
    end = expected[4]
    with program_of() as program:
        result = generate(program, PROMPT, tokens=20, ends=[end])
    assert list(result.tokens) == expected[: expected.index(end) + 1]
    assert result.finish_reason == "stop"


def test_a_stream_can_be_left_and_continued(expected):
    with program_of() as program, Decoder(program) as decoder:
        pieces = stream(decoder, PROMPT, tokens=20)
        first = [next(pieces).token for _ in range(3)]
        assert pieces.interrupt() == ""
        assert list(pieces) == []
        assert pieces.result.finish_reason == "interrupted"
        assert pieces.result.tokens == tuple(first)
        rest = generate(decoder, [*PROMPT, *first], tokens=17)
    assert [*first, *rest.tokens] == expected


def test_a_full_context_ends_it():
    with program_of() as program:
        assert len(generate(program, PROMPT, context=9).tokens) == 4
        with pytest.raises(BackendError, match="context is full"):
            generate(program, PROMPT, tokens=Shape.positions)
