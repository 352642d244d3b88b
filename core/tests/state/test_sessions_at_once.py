"""Runs of several sessions at once: what is asked for, and what sessions of a backend can join."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import narrowpass
from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.state.plain import PlainSession, check_values, dtype_of
from narrowpass_ir.verify import ValueSpec

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,2] x, float[1,2] h) => (float[1,2] y, float[1,2] hn) {
    hn = Add(h, x)
    y = Neg(hn)
}"""
CACHES = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,N,2] x, float[1,P,2] past_k, float[1,P,2] past_v)
=> (float[1,T,2] present_k, float[1,T,2] present_v) {
    present_k = Concat<axis = 1>(past_k, x)
    present_v = Concat<axis = 1>(past_v, x)
}"""


def load(text=TEXT, **options):
    return narrowpass.load(narrowpass.build(parser.parse_model(text), "", **options), "reference")


def feeds(*values):
    return [{"x": np.full((1, 2), value, np.float32)} for value in values]


def test_each_session_keeps_its_own_state():
    program = load()
    one, other = program.session(), program.session()
    for step in (1, 2):
        found = program.run_sessions([one, other], feeds(1, 10))
        assert [each["y"][0, 0] for each in found] == [-step, -10 * step]


@pytest.mark.parametrize(
    ("sessions", "count", "said"),
    [
        (lambda s: s, 1, "`sessions` is a list"),
        (lambda s: [], 0, "there is no session to run"),
        (lambda s: [s], 2, "1 sessions need as many feeds, not 2"),
        (lambda s: [s, 3], 2, "item 1 of `sessions` is no session: .*int"),
        (lambda s: [s, s], 2, "session 1 is session 0, which runs once"),
        (lambda s: [s, load().session()], 2, "session 1 is of another program"),
    ],
)
def test_wrong_sessions_are_refused(sessions, count, said):
    program = load()
    with pytest.raises(UsageError, match=said):
        program.run_sessions(sessions(program.session()), feeds(*range(count)))
    with pytest.raises(UsageError, match="`feeds` is a list"):
        program.run_sessions([program.session()], feeds(1)[0])


class Joined(PlainSession):
    """Runs sessions one after another in its own way, and counts how often."""

    joined: list[int]

    def _kind(self, feeds, method, outputs):
        return method

    def _run_merged(self, sessions, feeds, method):
        self.joined.append(len(sessions))
        return [each._run(given, method, None) for each, given in zip(sessions, feeds, strict=True)]


def test_sessions_of_one_kind_run_at_once():
    program = load()
    Joined.joined = []
    alone = program.session()
    group = [Joined(program, program.states) for _ in range(3)]
    order = [group[0], alone, group[1], group[2]]
    found = program.run_sessions(order, feeds(1, 2, 3, 4))
    assert [each["y"][0, 0] for each in found] == [-1, -2, -3, -4]
    assert Joined.joined == [3]
    # One alone is not asked to join.
    program.run_sessions([group[0]], feeds(1))
    assert Joined.joined == [3]


class Alike(PlainSession):
    """Has a kind, and no way to join."""

    def _kind(self, feeds, method, outputs):
        return method


def test_sessions_that_cannot_join_run_in_turn():
    program = load()
    group = [Alike(program, program.states) for _ in range(2)]
    found = program.run_sessions(group, feeds(1, 2))
    assert [each["y"][0, 0] for each in found] == [-1, -2]


def test_an_error_of_one_session_leaves_the_states_of_all():
    program = load()
    one, other = program.session(), program.session()
    program.run_sessions([one, other], feeds(1, 2))
    with pytest.raises(DataError, match=r"^session 1: "):
        program.run_sessions([one, other], [*feeds(1), {"x": np.ones((1, 2))}])
    assert one.values()["h"].tolist() == [[1, 1]]
    assert other.values()["h"].tolist() == [[2, 2]]


def test_caches_are_restored_together():
    session = load(CACHES).session()
    session.run({"x": np.ones((1, 3, 2), np.float32)})
    before = session.values()
    rows = np.zeros((1, 2, 2), np.float32)
    for values, kind, said in (
        ({"past_k": rows}, DataError, "'past_v' is missing"),
        ({"past_k": rows, "past_v": rows[:, :1]}, DataError, "different numbers of rows"),
        ({"past_k": rows[0, 0], "past_v": rows[0, 0]}, DataError, "different numbers of rows"),
        ({"past_k": [1.0], "past_v": rows}, DataError, "'past_k' is no array"),
        ({"other": rows}, UsageError, "'other' is no state"),
    ):
        with pytest.raises(kind, match=said):
            session.restore(values)
        assert session.length == 3
    np.testing.assert_array_equal(session.values()["past_k"], before["past_k"])
    session.restore({"past_k": rows, "past_v": rows})
    assert session.length == 2
    session.rewind(1)
    assert session.length == 1
    session.reset()
    session.rewind(0)
    assert session.length == 0


def test_files_of_sessions_that_append_in_place_are_refused(tmp_path):
    session = load().session()
    np.savez(tmp_path / "s.npz", **{"float16.h": np.zeros((1, 2), np.float16)})
    with pytest.raises(UsageError, match="the file has caches of float16"):
        session.load(tmp_path / "s.npz")


def test_bfloat16_is_not_saved(tmp_path):
    text = TEXT.replace("float[", "bfloat16[")
    session = load(text).session()
    session.restore({"h": np.ones((1, 2), ml_dtypes.bfloat16)})
    with pytest.raises(UsageError, match="bfloat16 cannot be saved"):
        session.save(tmp_path / "s.npz")
    assert not (tmp_path / "s.npz").exists()


@pytest.mark.parametrize("dtype", ["sequence(float)", None])
def test_a_state_that_is_no_tensor(dtype):
    with pytest.raises(BackendError, match="state 'h' is no tensor"):
        dtype_of(ValueSpec("h", dtype, None))


def test_values_are_not_restored_in_a_program_that_is_closed():
    class Closed:
        methods = ()

    with pytest.raises(UsageError, match="the program is closed"):
        check_values(Closed(), {"h": np.zeros(1)})
    check_values(Closed(), {})
