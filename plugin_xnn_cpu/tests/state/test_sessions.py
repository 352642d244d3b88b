"""Sessions that append to KV caches in place, beside onnx's evaluator with caches as feeds."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from functools import partial

import numpy as np
import onnx
import pytest
from layer_kit import ADDED, FORMS, TEXT, decoder, feeds_of, text_of
from masks_kit import Reference, assert_close, follow
from xnn_kit import compile_model

import narrowpass
from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.state.plain import PlainSession
from narrowpass_planning.state.session import AppendingSession


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_prompts_and_tokens(form, batch, threads):
    """Prompts of some rows, then tokens, then rows again; caches are compared, too."""
    model = decoder(form)
    reference = Reference(model, batch)
    with compile_model(model, threads=threads) as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        for step, rows in enumerate((9, 1, 1, 1, 12, 1, 5, 1, 1)):
            feeds = feeds_of(form, rows, session.length, step, batch)
            outputs = session.run(feeds)
            assert [*outputs] == ["y"]
            assert_close(outputs["y"], reference.run(feeds))
        values = session.values()
        for name, wanted in zip(("past_k", "past_v"), reference.caches, strict=True):
            assert_close(values[name], wanted)


def test_buffers_grow():
    model = decoder()
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        follow(
            session, reference, partial(feeds_of, "added"), (250, 1, 1, 1, 1, 1, 1, 1, 1, 600, 1)
        )
        assert (session.length, session.room) == (859, 1024)


def run_all(session: narrowpass.Session, seeds: range) -> list[np.ndarray]:
    return [session.run(feeds_of("added", 1, session.length, seed))["y"] for seed in seeds]


def test_forks_rewinds_and_files_go_on_with_the_same_bits(tmp_path):
    with compile_model(decoder()) as program:
        straight = program.session()
        wanted = run_all(straight, range(12))
        session = program.session()
        run_all(session, range(6))
        fork = session.fork()
        run_all(fork, range(100, 103))  # must not write to what the other one reads
        session.save(tmp_path / "state.npz")
        loaded = program.session()
        loaded.load(tmp_path / "state.npz")
        rewound = session.fork()
        run_all(rewound, range(200, 203))
        rewound.rewind(3)
        for other in (session, loaded, rewound):
            assert other.length == 6
            np.testing.assert_array_equal(run_all(other, range(6, 12)), wanted[6:])
        session.reset()
        np.testing.assert_array_equal(run_all(session, range(12)), wanted)


def test_sessions_take_turns():
    """Two sessions of one program keep apart what they append."""
    with compile_model(decoder()) as program:
        wanted = [run_all(program.session(), range(start, start + 8)) for start in (0, 50)]
        sessions = [program.session(), program.session()]
        found: list[list[np.ndarray]] = [[], []]
        for step in range(8):
            for index, session in enumerate(sessions):
                found[index] += run_all(session, range(50 * index + step, 50 * index + step + 1))
        np.testing.assert_array_equal(found, wanted)


def test_plain_sessions_compute_the_same():
    with compile_model(decoder()) as program:
        ours, plain = program.session(), PlainSession(program, program.states)
        for step, rows in enumerate((7, 1, 1, 1, 1, 30, 1)):
            feeds = feeds_of("added", rows, ours.length, step)
            assert_close(ours.run(feeds)["y"], plain.run(feeds)["y"])


def test_what_does_not_fit_leaves_the_state_as_it_was():
    with compile_model(decoder()) as program, program.session() as session:
        run_all(session, range(3))
        before = session.values()
        good = feeds_of("added", 1, 3, 3)
        wide = {**good, "mask": np.zeros((1, 9), np.float32)}
        double = {**good, "x": good["x"].astype(np.float64)}
        for bad, error in ((wide, BackendError), (double, DataError), ({}, DataError)):
            with pytest.raises(error):
                session.run(bad)
        with pytest.raises(UsageError, match=r"past_k.*is state"):
            session.run({**good, "past_k": before["past_k"]})
        with pytest.raises(UsageError, match="has no value 'z'"):
            session.run(good, outputs=["z"])
        after = session.values()
        assert session.length == 3
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
        straight = program.session()
        np.testing.assert_array_equal(
            run_all(session, range(3, 6)), run_all(straight, range(6))[3:]
        )


def test_some_caches_alone_and_closed_programs():
    program = compile_model(decoder())
    session = program.session()
    run_all(session, range(2))
    values = session.values()
    with pytest.raises(DataError, match="'past_v' is missing"):
        session.restore({"past_k": values["past_k"]})
    with pytest.raises(UsageError, match="no method 'other'"):
        session.run(feeds_of("added", 1, 2, 0), "other")
    program.close()
    for method in ("main", "other"):
        with pytest.raises(UsageError, match="closed"):
            session.run(feeds_of("added", 1, 2, 0), method)
    session.close()


def test_an_inner_value_can_be_asked_for():
    model = decoder()
    with compile_model(model, keep=("o",)) as program, program.session() as session:
        feeds = feeds_of("added", 2, 0, 0)
        outputs = session.run(feeds, outputs=["o"])
        assert_close(outputs["o"] + feeds["x"], Reference(model).run(feeds))
        assert session.length == 2


def peak_of_tokens(session, count):
    """Return the most bytes that Python held while a session ran tokens."""
    feeds = [feeds_of("added", 1, session.length + step, step) for step in range(count)]
    tracemalloc.start()
    try:
        for each in feeds:
            session.run(each)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_token_copies_no_cache_and_allocates_its_outputs_alone():
    """2,000 cached rows are 96 kB for each state; a token's output is 96 bytes."""
    with compile_model(decoder()) as program, program.session() as session:
        session.run(feeds_of("added", 2000, 0, 0))
        run_all(session, range(4))
        addresses = {name: a.ctypes.data for name, a in session._buffers.arrays.items()}
        # What other threads of the process and first calls allocate counts once, and not each time.
        assert min(peak_of_tokens(session, 10) for _ in range(3)) < 16_384
        assert addresses == {name: a.ctypes.data for name, a in session._buffers.arrays.items()}
        (partition,) = session._methods["main"].method.partitions
        assert "NP_APPENDED_ATTENTION" in {p.call for p in partition.bound.placements().values()}


READERS = {
    "y = Add(x, o)": "n = Size(k) f = Cast <to = 1> (n) z = Neg(f) w = Add(x, o) y = Max(w, z)",
    "ku = Unsqueeze(k, two)": "k9 = Mul(k, one) ku = Unsqueeze(k9, two)",
    "v = Concat <axis = -2> (past_v, v2)": "pv = Mul(past_v, one) v = Concat <axis = -2> (pv, v2)",
}


@pytest.mark.parametrize("old", READERS)
def test_caches_that_others_read_are_fed_instead(old):
    """The reason is there to be read, and results are the same."""
    model = onnx.parser.parse_model(text_of("added", old, READERS[old]))
    model.graph.initializer.extend(decoder().graph.initializer[-4:])
    states = [
        narrowpass.State("past_k", "present_k", 2),
        narrowpass.State("past_v", "present_v", 2),
    ]
    bundle = narrowpass.build(model, "", states=states)
    reference = Reference(model)
    with narrowpass.load(bundle, "xnn-cpu", cache="memory") as program:
        session = program.session()
        assert isinstance(session, PlainSession)
        assert "cache" in session.reason
        follow(session, reference, partial(feeds_of, "added"), (4, 1, 1))


@pytest.mark.parametrize("length", [-1, 1 << 40, 250])
def test_lengths_out_of_range_are_refused_in_c(length):
    """A caller may write to the number of rows while the kernels run: they check what they read."""
    with compile_model(decoder()) as program, program.session() as session:
        session.run(feeds_of("added", 200, 0, 0))
        run_all(session, range(2))
        appending = session._methods["main"]
        token = appending.token
        feeds = feeds_of("added", 1, session.length, 5)
        total = session.length + 1
        given = {**feeds, "narrowpass.length": np.array([length if length != 250 else 256])}
        with pytest.raises(BackendError, match="index"):
            token.run(given, session._buffers, total, program.threads())


def test_a_run_of_other_outputs_binds_other_caches():
    """The prepared run of one session must not write to the caches of another one."""
    with compile_model(decoder("none")) as program:
        first, second = program.session(), program.session()
        wanted = Reference(decoder("none"))
        for seed in range(4):
            feeds = feeds_of("none", 1, seed, seed)
            first.run(feeds)
            wanted.run(feeds)
        for seed in range(6):
            second.run(feeds_of("none", 1, seed, 50 + seed), outputs=["y"])
        before = second.values()
        feeds = feeds_of("none", 1, 4, 4)
        assert_close(first.run(feeds)["y"], wanted.run(feeds))
        for name, value in second.values().items():
            np.testing.assert_array_equal(value, before[name])


def test_masks_of_one_row_and_of_several():
    """A mask of one row is broadcast; one of a row for each query is not."""
    text = TEXT.replace("MASKED", ADDED[1]).replace("MASK", "float[M, T] mask")
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(decoder().graph.initializer[-4:])
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        for step, rows in enumerate((1, 1, 3, 3, 1, 3)):
            feeds = feeds_of("added", 3, session.length, step)
            feeds["mask"] = feeds["mask"][-rows:]
            assert_close(session.run(feeds)["y"], reference.run(feeds))


def test_computed_masks_are_checked_in_each_run():
    with compile_model(decoder("computed")) as program, program.session() as session:
        session.run(feeds_of("computed", 3, 0, 0))
        session.run(feeds_of("computed", 1, 3, 1))
        with pytest.raises(BackendError, match="4 columns, and caches 5 rows"):
            session.run(feeds_of("computed", 1, 3, 2))
        assert session.length == 4


def test_a_state_that_is_asked_for_is_a_copy():
    with compile_model(decoder()) as program, program.session() as session:
        run_all(session, range(2))
        found = session.run(feeds_of("added", 1, 2, 2), outputs=["present_k", "y"])
        assert [*found] == ["present_k", "y"]
        kept = session.values()["past_k"]
        np.testing.assert_array_equal(found["present_k"], kept)
        found["present_k"][:] = 7
        np.testing.assert_array_equal(session.values()["past_k"], kept)


def test_memory_that_runs_out_leaves_the_state(monkeypatch):
    with compile_model(decoder()) as program, program.session() as session:
        run_all(session, range(3))
        before = session.values()

        def full(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr("narrowpass_planning.state.buffers.allocate_bytes", full)
        with pytest.raises(MemoryError):
            session.restore(before)
        monkeypatch.undo()
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, before[name])
        wanted = run_all(program.session(), range(5))
        np.testing.assert_array_equal(run_all(session, range(3, 5)), wanted[3:])


def test_a_batch_of_another_size_begins_anew():
    with compile_model(decoder()) as program, program.session() as session:
        wide = {**feeds_of("added", 1, 0, 0), "mask": np.zeros((1, 9), np.float32)}
        with pytest.raises(BackendError):
            session.run(wide)
        for batch in (3, 2):
            feeds = feeds_of("added", 2, 0, 0, batch)
            assert_close(session.run(feeds)["y"], Reference(decoder(), batch).run(feeds))
            session.rewind(2)


def test_closed_sessions_and_forks_that_are_gone_free_their_buffers():
    with compile_model(decoder()) as program:
        session = program.session()
        run_all(session, range(3))
        fork = session.fork()
        buffers = weakref.ref(session._buffers)
        assert len(buffers().users) == 2
        del fork
        gc.collect()
        run_all(session, range(3, 4))
        assert session._buffers is buffers()  # nothing was copied
        session.close()
        gc.collect()
        assert buffers() is None


def test_caches_of_float16_are_fed_instead():
    """They are upcast on the way, so that rows cannot be appended to them."""
    text = text_of("added").replace("float[B, 2, P, 6] past", "float16[B, 2, P, 6] past")
    text = text.replace("float[B, 2, T, 6] present", "float16[B, 2, T, 6] present")
    text = text.replace("(past_k, k2)", "(past_k, k2h)").replace("(past_v, v2)", "(past_v, v2h)")
    text = text.replace("k = Concat", "k2h = Cast <to = 10> (k2) kc = Concat")
    text = text.replace("v = Concat", "v2h = Cast <to = 10> (v2) vc = Concat")
    text = text.replace(
        "present_k = Identity(k)", "present_k = Identity(kc) k = Cast <to = 1> (kc)"
    )
    text = text.replace(
        "present_v = Identity(v)", "present_v = Identity(vc) v = Cast <to = 1> (vc)"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(decoder().graph.initializer[-4:])
    reference = Reference(model)
    reference.caches = [cache.astype(np.float16) for cache in reference.caches]
    with compile_model(model) as program:
        session = program.session()
        assert isinstance(session, PlainSession)
        assert "float16" in session.reason
        for step, rows in enumerate((4, 1, 1)):
            feeds = feeds_of("added", rows, session.length, step)
            found, wanted = session.run(feeds)["y"], reference.run(feeds)
            # Caches are rounded to 11 bits; both round the same float32 within some 1e-6.
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
