"""Runs of several sessions at once, beside onnx's evaluator with the caches of each as feeds."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
from layer_kit import FORMS, decoder, feeds_of
from masks_kit import Reference, assert_close
from xnn_kit import compile_model

import narrowpass
from narrowpass.errors import DataError, UsageError
from narrowpass_planning.state.merged import MergedRun

LENGTHS = 5, 1, 9, 2
Pair = tuple[narrowpass.Session, Reference]


@pytest.fixture
def merged(monkeypatch) -> list[int]:
    """Return a list that gets the number of sessions of each run that computes several at once."""
    counts: list[int] = []
    run = MergedRun.run

    def counted(self, lanes, pool):
        found = run(self, lanes, pool)
        if found is not None:
            counts.append(len(lanes))
        return found

    monkeypatch.setattr(MergedRun, "run", counted)
    return counts


def started(
    program: narrowpass.Program, form: str, lengths: Sequence[int] = LENGTHS, batch: int = 1
) -> list[Pair]:
    """Return sessions of so many rows, each with an oracle."""
    model, pairs = decoder(form), []
    for seed, rows in enumerate(lengths):
        session, reference = program.session(), Reference(model, batch)
        feeds = feeds_of(form, rows, 0, 100 + seed, batch)
        assert_close(session.run(feeds)["y"], reference.run(feeds))
        pairs.append((session, reference))
    return pairs


def step(
    program: narrowpass.Program, pairs: Sequence[Pair], form: str, seed: int, rows: int = 1
) -> None:
    """Run all sessions at once, and compare each with its oracle."""
    feeds = []
    for place, (session, reference) in enumerate(pairs):
        batch = reference.caches[0].shape[0]
        feeds.append(feeds_of(form, rows, session.length, seed * 50 + place, batch))
    found = program.run_sessions([session for session, _ in pairs], feeds)
    assert len(found) == len(pairs)
    for results, fed, (session, reference) in zip(found, feeds, pairs, strict=True):
        assert [*results] == ["y"]
        assert_close(results["y"], reference.run(fed))
        assert session.length == reference.caches[0].shape[2]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_tokens_of_sessions_of_several_lengths(form, batch, threads, merged):
    with compile_model(decoder(form), threads=threads) as program:
        pairs = started(program, form, batch=batch)
        for seed in range(4):
            step(program, pairs, form, seed)
        # A mask that is computed has other columns in each run: sessions take turns.
        assert merged == ([] if form == "computed" else [len(LENGTHS)] * 4)
        for session, reference in pairs:
            for name, cache in zip(("past_k", "past_v"), reference.caches, strict=True):
                assert_close(session.values()[name], cache)


def test_prompts_of_equal_rows_run_at_once(merged):
    with compile_model(decoder()) as program:
        model = decoder()
        pairs = [(program.session(), Reference(model)) for _ in range(3)]
        step(program, pairs, "added", 0, rows=300)  # more than buffers have room for at first
        step(program, pairs, "added", 1)
        assert merged == [3, 3]


def test_feeds_of_other_rows_run_in_turn(merged):
    """Two of the sessions have as many rows, and run at once; results are in order."""
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        rows = 2, 1, 3, 2
        feeds = [feeds_of("added", r, s.length, r) for r, (s, _) in zip(rows, pairs, strict=True)]
        found = program.run_sessions([session for session, _ in pairs], feeds)
        for results, fed, (_, reference) in zip(found, feeds, pairs, strict=True):
            assert_close(results["y"], reference.run(fed))
        assert merged == [2]


def test_alone_and_at_once_by_turns(merged):
    """Operators hold one size: each kind of run finds that of the other."""
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        for seed in range(3):
            step(program, pairs, "added", 2 * seed)
            step(program, pairs[:2], "added", 20 + seed)
            for place, (session, reference) in enumerate(pairs):
                feeds = feeds_of("added", 1, session.length, 900 + place)
                assert_close(session.run(feeds)["y"], reference.run(feeds))
        step(program, pairs[:1], "added", 70)
        assert merged == [4, 2] * 3


def test_buffers_that_get_more_room(merged):
    """One session's buffers get room for 512 rows, and later another one's."""
    with compile_model(decoder()) as program:
        pairs = started(program, "added", (253, 7, 250))
        for seed in range(8):
            step(program, pairs, "added", seed)
        assert [session.room for session, _ in pairs] == [512, 256, 512]
        assert merged == [3] * 8


def test_forks_rewinds_resets_and_files_between_runs(merged, tmp_path):
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        step(program, pairs, "added", 0)
        session, reference = pairs[0]
        other = Reference(decoder())
        other.caches = list(reference.caches)
        pairs.append((session.fork(), other))
        step(program, pairs, "added", 1)
        step(program, pairs, "added", 2)
        session, reference = pairs[1]
        session.rewind(2)
        reference.caches = [cache[:, :, :-2] for cache in reference.caches]
        session, reference = pairs[2]
        session.save(tmp_path / "state.npz")
        kept = list(reference.caches)
        step(program, pairs, "added", 3)
        session.load(tmp_path / "state.npz")
        reference.caches = kept
        step(program, pairs, "added", 4)
        pairs[3][0].reset()
        pairs[3] = pairs[3][0], Reference(decoder())
        step(program, pairs, "added", 5)
        assert merged == [4, 5, 5, 5, 5, 5]


def test_sessions_that_leave_and_join(merged):
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        step(program, pairs, "added", 0)
        pairs.pop(1)[0].close()
        gc.collect()
        step(program, pairs, "added", 1)
        pairs += started(program, "added", (3, 4))
        step(program, pairs[::-1], "added", 2)
        assert merged == [4, 3, 5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_narrow_caches(dtype, merged):
    """Results have the bits of the same sessions alone, whose values other tests compare.

    float32 matmuls of one and of three rows may differ in rounding, and narrowing to 8 bits may
    turn that into a step of 1/127 of a row.
    """
    with compile_model(decoder()) as program:
        alone = [program.session(dtype) for _ in range(3)]
        for place, session in enumerate(alone):
            session.run(feeds_of("added", 3 + place, 0, place))
        together = [session.fork() for session in alone]
        for seed in range(4):
            feeds = [feeds_of("added", 1, s.length, seed * 9 + s.length) for s in alone]
            found = program.run_sessions(together, feeds)
            for session, fed, results in zip(alone, feeds, found, strict=True):
                wanted = session.run(fed)["y"]
                np.testing.assert_allclose(results["y"], wanted, atol=2e-2 * np.abs(wanted).max())
        assert merged == [3] * 4


def test_caches_of_several_types(merged):
    with compile_model(decoder()) as program:
        pairs = started(program, "added", (4, 2))
        narrow = program.session("float16")
        narrow.run(feeds_of("added", 4, 0, 100))
        feeds = [feeds_of("added", 1, session.length, 5) for session, _ in pairs]
        found = program.run_sessions([pairs[0][0], narrow, pairs[1][0]], [feeds[0], *feeds])
        first, second, third = (results["y"] for results in found)
        assert_close(first, pairs[0][1].run(feeds[0]))
        assert_close(third, pairs[1][1].run(feeds[1]))
        # Keys and values are rounded to 11 bits.
        np.testing.assert_allclose(second, first, atol=4e-3 * np.abs(first).max())
        assert not np.array_equal(second, first)
        assert merged == [2]


def test_results_stay_as_they_are():
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        sessions = [session for session, _ in pairs]
        kept = []
        for seed in range(6):
            feeds = [feeds_of("added", 1, s.length, seed) for s in sessions]
            found = [results["y"] for results in program.run_sessions(sessions, feeds)]
            kept.append((found, [y.copy() for y in found]))
        for found, copies in kept:
            for y, copy in zip(found, copies, strict=True):
                np.testing.assert_array_equal(y, copy)


@pytest.mark.parametrize("ready", [False, True])
def test_what_does_not_fit_changes_no_session(ready, merged):
    with compile_model(decoder()) as program:
        pairs = started(program, "added")
        if ready:
            step(program, pairs, "added", 0)
        sessions = [session for session, _ in pairs]
        before = [session.values() for session in sessions]
        good = [feeds_of("added", 1, session.length, 3) for session in sessions]
        wrong = {
            "columns": {**good[2], "mask": good[2]["mask"][:, 1:]},
            "dtype": {**good[2], "x": good[2]["x"].astype(np.float64)},
            "rank": {**good[2], "x": good[2]["x"][0]},
            "missing": {"x": good[2]["x"]},
            "unknown": {**good[2], "z": good[2]["x"]},
        }
        for feeds in wrong.values():
            with pytest.raises(narrowpass.errors.NarrowpassError, match="session 2: "):
                program.run_sessions(sessions, [*good[:2], feeds, good[3]])
        state = {**good[2], "past_k": before[2]["past_k"]}
        with pytest.raises(UsageError, match="session 2: input 'past_k' is state"):
            program.run_sessions(sessions, [*good[:2], state, good[3]])
        with pytest.raises(DataError, match="session 1: feeds are a mapping"):
            program.run_sessions(sessions, [good[0], [], *good[2:]])
        for session, values in zip(sessions, before, strict=True):
            for name, value in session.values().items():
                np.testing.assert_array_equal(value, values[name])
        step(program, pairs, "added", 1)
        assert merged[-1] == 4


def test_a_prefill_that_fails_leaves_caches_that_a_fork_shares():
    """The fork appends while the others run, and must not write to what is returned to."""
    from narrowpass_testing import model_from_text

    begin = model_from_text("""g (float[1,N,2] x) => (float[1,N,2] y, float[1,N,2] present)
    { present = Identity(x) y = Neg(x) }""")
    go_on = model_from_text("""g (float[1,N,2] x, float[1,P,2] past, float[1,N,2] more)
    => (float[1,N,2] y, float[1,T,2] present) {
        present = Concat<axis = 1>(past, x)
        turned = Transpose<perm = [0, 2, 1]>(present)
        scores = MatMul(more, turned)
        weights = Softmax<axis = -1>(scores)
        y = MatMul(weights, present)
    }""")
    bundle = narrowpass.build({"prefill": begin, "decode": go_on}, "")
    with narrowpass.load(bundle, "xnn-cpu", threads=1) as program:
        sessions = [program.session(), program.session()]
        row = np.ones((1, 1, 2), np.float32)
        program.run_sessions(sessions, [{"x": row * 3}, {"x": row * 4}], "prefill")
        fork = sessions[0].fork()
        before = [session.values() for session in sessions]
        with pytest.raises(DataError, match="session 1: "):
            program.run_sessions(sessions, [{"x": row * 9}, {"x": row[0]}], "prefill")
        gc.collect()
        fork.run({"x": row * 5, "more": row}, "decode")
        for session, values in zip(sessions, before, strict=True):
            np.testing.assert_array_equal(session.values()["past"], values["past"])


def test_lists_that_do_not_fit():
    with compile_model(decoder()) as program, compile_model(decoder()) as other:
        session, feeds = program.session(), feeds_of("added", 1, 0, 0)
        with pytest.raises(UsageError, match="no session to run"):
            program.run_sessions([], [])
        with pytest.raises(UsageError, match="1 sessions need as many feeds, not 2"):
            program.run_sessions([session], [feeds, feeds])
        with pytest.raises(UsageError, match="session 1 is session 0"):
            program.run_sessions([session, session], [feeds, feeds])
        with pytest.raises(UsageError, match="session 1 is of another program"):
            program.run_sessions([session, other.session()], [feeds, feeds])
        with pytest.raises(UsageError, match="item 0 of `sessions` is no session"):
            program.run_sessions([program], [feeds])
        with pytest.raises(UsageError, match="`feeds` is a list"):
            program.run_sessions([session], feeds)
        with pytest.raises(UsageError, match=r"session 0: .*nothing"):
            program.run_sessions([session], [feeds], outputs=["nothing"])
        assert session.length == 0
        closed = program.session()
        closed.close()
        with pytest.raises(UsageError, match="session 1: the session is closed"):
            program.run_sessions([session, closed], [feeds, feeds])


def test_outputs_that_are_asked_for(merged):
    with compile_model(decoder()) as program:
        pairs = started(program, "added", (4, 2))
        feeds = [feeds_of("added", 1, session.length, 5) for session, _ in pairs]
        found = program.run_sessions([s for s, _ in pairs], feeds, outputs=["y", "present_k"])
        for results, fed, (_, reference) in zip(found, feeds, pairs, strict=True):
            assert_close(results["y"], reference.run(fed))
            assert_close(results["present_k"], reference.caches[0])
        assert merged == []
