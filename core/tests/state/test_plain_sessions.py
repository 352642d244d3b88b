"""Sessions of any backend: here of the reference backend, beside arithmetic by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import narrowpass
from narrowpass.errors import DataError, OutputError, UsageError

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[B,N,2] x, float[B,P,2] past, float[B,2] h) => (float[B,2] y, float[B,T,2] present,
   float[B,2] hn)
<int64[1] rows = {1}> {
    present = Concat<axis = 1>(past, x)
    total = ReduceSum<keepdims = 0>(present, rows)
    hn = Add(h, total)
    y = Neg(hn)
}"""
GROWING = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,N,2] x, float[1,P,2] past) => (float[1,2] y, float[1,T,2] present)
<int64[1] rows = {1}> {
    present = Concat<axis = 1>(past, x)
    y = ReduceSum<keepdims = 0>(present, rows)
}"""


def program_of(text: str = TEXT) -> narrowpass.Program:
    return narrowpass.load(narrowpass.build(parser.parse_model(text), ""), "reference")


def rows(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array([[[value, 1.0] for value in values]], np.float32)}


def test_a_loop():
    program = program_of()
    assert [str(state) for state in program.states] == ["past=present@1", "h=hn"]
    session = program.session()
    total, hidden = 0.0, 0.0
    for values in ((1.0, 2.0), (3.0,), (4.0, 5.0, 6.0)):
        outputs = session.run(rows(*values))
        total += sum(values)
        hidden += total
        assert [*outputs] == ["y"]
        assert outputs["y"][0, 0] == -hidden
    assert session.length == 6
    assert session.values()["past"].shape == (1, 6, 2)
    session.reset()
    assert session.length == 0
    assert session.run(rows(7.0))["y"][0, 0] == -7.0


def test_states_of_batches_begin_with_the_size_of_other_feeds():
    outputs = program_of().session().run({"x": np.ones((3, 1, 2), np.float32)})
    assert outputs["y"].shape == (3, 2)


def test_a_size_without_a_name_is_the_batch():
    """As Silero's state, [2, ?, 128]: onnx's text has no such size, so names are taken away."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[B,2] x, float[2,B,2] h) => (float[2,B,2] y, float[2,B,2] hn) {
        hn = Add(h, x) y = Neg(hn)
    }""")
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    bundle = narrowpass.build(model, "")
    for batch in (1, 3):
        with narrowpass.load(bundle, "reference") as program, program.session() as session:
            for count in (1, 2):
                outputs = session.run({"x": np.ones((batch, 2), np.float32)})
                np.testing.assert_array_equal(outputs["y"], np.full((2, batch, 2), -count))
    model.graph.input[1].type.tensor_type.shape.dim[0].ClearField("dim_value")
    session = narrowpass.load(narrowpass.build(model, ""), "reference").session()
    with pytest.raises(UsageError, match="axes 0, 1 of state 'h' have no size"):
        session.run({"x": np.ones((1, 2), np.float32)})


def test_rewind_fork_save_and_load(tmp_path):
    program = program_of(GROWING)
    session = program.session()
    session.run(rows(1.0, 2.0))
    fork = session.fork()
    fork.run(rows(10.0))
    fork.save(tmp_path / "s.npz")
    fork.rewind(2)
    assert fork.length == 1
    assert fork.run(rows(5.0))["y"][0, 0] == 6.0
    assert session.run(rows(3.0))["y"][0, 0] == 6.0
    session.load(tmp_path / "s.npz")
    assert session.length == 3
    assert session.run(rows(1.0))["y"][0, 0] == 14.0
    session.rewind(0)
    with pytest.raises(UsageError, match="5 rows cannot be dropped"):
        session.rewind(5)
    hidden = program_of().session()
    hidden.run(rows(1.0))
    with pytest.raises(UsageError, match="does not grow"):
        hidden.rewind(1)


def test_what_does_not_fit_leaves_the_state(tmp_path):
    program = program_of(GROWING)
    session = program.session()
    session.run(rows(1.0, 2.0))
    before = session.values()["past"]
    with pytest.raises(DataError):
        session.run({"x": np.ones((1, 1, 2))})
    with pytest.raises(UsageError, match="is state"):
        session.run(rows(1.0) | {"past": before})
    with pytest.raises(UsageError, match="is no state"):
        session.restore({"other": before})
    with pytest.raises(DataError, match="'past' is float of"):
        session.restore({"past": before.astype(np.float64)})
    with pytest.raises(DataError):
        session.restore({"past": before[0]})
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"bad\.npz: is no state"):
        session.load(tmp_path / "bad.npz")
    with pytest.raises(UsageError, match="cannot be read"):
        session.load(tmp_path / "none.npz")
    np.testing.assert_array_equal(session.values()["past"], before)
    assert session.run(rows(3.0))["y"][0, 0] == 6.0


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    session = program_of(GROWING).session()
    session.run(rows(1.0))
    session.save(tmp_path / "s.npz")
    before = (tmp_path / "s.npz").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OutputError, match="No space left"):
        session.save(tmp_path / "s.npz")
    assert (tmp_path / "s.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_no_state_and_closed_sessions():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    )
    with pytest.raises(UsageError, match="--state INPUT=OUTPUT"):
        narrowpass.load(narrowpass.build(model, ""), "reference").session()
    with program_of(GROWING).session() as session:
        session.run(rows(1.0))
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run(rows(1.0))


def test_a_prefill_starts_anew():
    decode = parser.parse_model(GROWING)
    prefill = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,N,2] x) => (float[1,2] y, float[1,N,2] present) <int64[1] rows = {1}> {
            present = Identity(x) y = ReduceSum<keepdims = 0>(x, rows) }"""
    )
    bundle = narrowpass.build({"prefill": prefill, "decode": decode}, "")
    session = narrowpass.load(bundle, "reference").session()
    for _ in range(2):
        assert session.run(rows(1.0, 2.0), "prefill")["y"][0, 0] == 3.0
        assert session.run(rows(4.0), "decode")["y"][0, 0] == 7.0
        assert session.length == 3


def test_methods_with_hidden_states_alone_keep_the_caches():
    main = parser.parse_model(GROWING)
    up = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,2] h) => (float[1,2] hn) { hn = Neg(h) }"""
    )
    program = narrowpass.load(narrowpass.build({"main": main, "up": up}, ""))
    session = program.session()
    session.run(rows(1.0, 2.0))
    session.run({}, "up")
    assert session.length == 2
    session.restore(session.values() | {"h": np.ones((1, 2), np.float32)})
    assert session.run({}, "up", outputs=["hn"])["hn"][0, 0] == -1.0
    assert session.run(rows(4.0))["y"][0, 0] == 7.0


def test_one_array_is_no_state(tmp_path):
    session = program_of(GROWING).session()
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(DataError, match="is no state"):
        session.load(tmp_path / "one.npy")
    with pytest.raises(DataError, match="feeds are a mapping"):
        session.run([1])


def test_several_sessions_in_turn():
    """Any backend runs them one after the other; an error undoes those before."""
    program = program_of()
    sessions = [program.session() for _ in range(3)]
    for session, value in zip(sessions, (1.0, 2.0, 3.0), strict=True):
        session.run(rows(value))
    found = program.run_sessions(sessions, [rows(10.0), rows(20.0, 5.0), rows(30.0)])
    # y is -(h + the total of all rows), and h what it was after the run before.
    assert [float(outputs["y"][0, 0]) for outputs in found] == [-12.0, -29.0, -36.0]
    assert [session.length for session in sessions] == [2, 3, 2]
    before = [session.values() for session in sessions]
    with pytest.raises(DataError, match="session 2: "):
        program.run_sessions(sessions, [rows(1.0), rows(1.0), {"x": np.ones(3, np.float32)}])
    with pytest.raises(UsageError, match="session 1: input 'past' is state"):
        program.run_sessions(sessions, [rows(1.0), {"past": before[0]["past"]}, rows(1.0)])
    for session, values in zip(sessions, before, strict=True):
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, values[name])
    with pytest.raises(UsageError, match="session 2 is session 0, which runs once; fork it"):
        program.run_sessions([*sessions[:2], sessions[0]], [rows(1.0)] * 3)
    with pytest.raises(UsageError, match="session 0 is of another program"):
        program_of().run_sessions(sessions[:1], [rows(1.0)])


def test_a_run_that_begins_states_is_undone():
    """A prefill replaces the caches, which are there again after an error in another session."""
    prefill = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1,N,2] x) => (float[1,2] y, float[1,N,2] present) <int64[1] rows = {1}> {
        present = Identity(x)
        y = ReduceSum<keepdims = 0>(present, rows)
    }"""
    methods = {"prefill": parser.parse_model(prefill), "decode": parser.parse_model(GROWING)}
    program = narrowpass.load(narrowpass.build(methods, ""), "reference")
    sessions = [program.session(), program.session()]
    program.run_sessions(sessions, [rows(1.0, 2.0), rows(3.0)], "prefill")
    with pytest.raises(DataError, match="session 1: "):
        program.run_sessions(sessions, [rows(7.0), {}], "prefill")
    found = program.run_sessions(sessions, [rows(4.0), rows(5.0)], "decode")
    assert [float(outputs["y"][0, 0]) for outputs in found] == [7.0, 8.0]
