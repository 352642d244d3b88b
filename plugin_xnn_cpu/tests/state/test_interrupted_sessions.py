"""Interrupts while sessions bind their caches, and lanes of a table that is computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from layer_kit import decoder, feeds_of, text_of
from masks_kit import Reference, assert_close
from xnn_kit import compile_model

from narrowpass_planning.plan.lanes import BoundLanes
from narrowpass_planning.state.method import Token

FORM = "added"


def begun(program, rows, seed):
    """Return a session and its oracle after a prompt."""
    session, reference = program.session(), Reference(decoder(FORM))
    step(session, reference, rows, seed)
    return session, reference


def step(session, reference, rows, seed):
    """Run both, and compare them."""
    feeds = feeds_of(FORM, rows, session.length, seed)
    assert_close(session.run(feeds)["y"], reference.run(feeds))


def together(program, pairs, seed):
    """Run sessions together, and compare each with its oracle."""
    feeds = [feeds_of(FORM, 1, session.length, seed + i) for i, (session, _) in enumerate(pairs)]
    found = program.run_sessions([session for session, _ in pairs], feeds)
    for outputs, (_, reference), fed in zip(found, pairs, feeds, strict=True):
        assert_close(outputs["y"], reference.run(fed))


def test_an_interrupt_while_lanes_bind_other_caches(monkeypatch):
    with compile_model(decoder(FORM)) as program:
        one = [begun(program, 6, seed) for seed in (1, 2)]
        other = [begun(program, 4, seed) for seed in (3, 4)]
        together(program, one, 10)
        with monkeypatch.context() as patch:
            patch.setattr(BoundLanes, "bind_apart", interrupt)
            with pytest.raises(KeyboardInterrupt):
                program.run_sessions(
                    [session for session, _ in other],
                    [feeds_of(FORM, 1, session.length, 5) for session, _ in other],
                )
        for seed in (20, 30):
            together(program, other, seed)
            together(program, one, seed)


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupt_while_a_token_binds_other_caches(monkeypatch):
    with compile_model(decoder(FORM)) as program:
        (one, first), (other, second) = begun(program, 6, 1), begun(program, 9, 2)
        step(other, second, 1, 3)
        for seed in range(3):
            step(one, first, 1, seed)
        bind, calls = Token._bind, []

        def interrupted(self, buffers):
            """Bind, and be interrupted before the buffers are known."""
            tape = type(self._bound.tape)
            bind_all = tape.bind_all

            def once(*args):
                bind_all(*args)
                calls.append(args)
                if len(calls) == 1:
                    raise KeyboardInterrupt

            with monkeypatch.context() as inner:
                inner.setattr(tape, "bind_all", once)
                return bind(self, buffers)

        with monkeypatch.context() as patch:
            patch.setattr(Token, "_bind", interrupted)
            with pytest.raises(KeyboardInterrupt):
                other.run(feeds_of(FORM, 1, other.length, 50))
        assert calls
        for seed in range(3):
            step(one, first, 1, 60 + seed)
            step(other, second, 1, 70 + seed)


def test_an_interrupt_while_a_session_takes_buffers_of_its_own(monkeypatch):
    """A fork shares them until one of both appends."""
    with compile_model(decoder(FORM)) as program:
        session, reference = begun(program, 6, 1)
        fork = session.fork()

        class Users(type(session._buffers.users)):
            def discard(self, item):
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(session._buffers, "users", Users(session._buffers.users))
            with pytest.raises(KeyboardInterrupt):
                program.run_sessions([session], [feeds_of(FORM, 1, 6, 2)])
        assert (session.length, fork.length) == (6, 6)
        step(session, reference, 1, 3)
        for name, value in fork.values().items():
            np.testing.assert_array_equal(value, session.values()[name][:, :, :6])


def test_lanes_of_a_table_that_is_computed():
    """Each lane reads its own."""
    text = text_of("none").replace("y = Add(x, o)", "y0 = Add(x, o) y1 = Reshape(y0, flat) TAKE")
    text = text.replace("TAKE", "y2 = Gather <axis = 0> (y1, pick) y = Identity(y2)")
    text = text.replace("float[1] unused", "int64[1, 1] pick")
    text = text.replace("int64[1] two = {2}", "int64[1] two = {2}, int64[2] flat = {-1, 24}")
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(decoder("none").graph.initializer)
    rng = np.random.default_rng(0)
    with compile_model(model) as program:
        sessions = [program.session() for _ in range(3)]
        references = [Reference(model) for _ in sessions]
        for _ in range(3):
            feeds = [
                {
                    "x": rng.standard_normal((1, 1, 24)).astype(np.float32),
                    "pick": np.zeros((1, 1), int),
                }
                for _ in sessions
            ]
            found = program.run_sessions(sessions, feeds)
            for outputs, reference, fed in zip(found, references, feeds, strict=True):
                assert_close(outputs["y"], reference.run(fed))
