"""Positions and masks that a graph computes from the shapes of its caches, appended in place.

Beside onnx's evaluator with caches as feeds.
"""

from __future__ import annotations

import tracemalloc
from functools import partial

import onnx
import pytest
from masks_kit import FED, MASKS, Reference, assert_close, decoder, feeds_of, follow
from xnn_kit import compile_model

from narrowpass_planning.state.session import AppendingSession


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", MASKS)
def test_prompts_and_tokens(form, batch, threads):
    """Prompts of some rows, then tokens, then rows again; caches are compared, too."""
    model = decoder(form)
    reference = Reference(model, batch)
    with compile_model(model, threads=threads) as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        assert not session.reason
        follow(
            session,
            reference,
            partial(feeds_of, form, batch=batch),
            (9, 1, 1, 1, 12, 1, 5, 1, 1, 60, 1),
        )
        values = session.values()
        for name, wanted in zip(("past_k", "past_v"), reference.caches, strict=True):
            assert_close(values[name], wanted)


@pytest.mark.parametrize("form", MASKS)
def test_a_token_plans_nothing_and_allocates_its_outputs_alone(form, monkeypatch):
    """2,000 cached rows are 96 kB for each state; masks of them would be 8 kB a row."""
    with compile_model(decoder(form)) as program, program.session() as session:
        session.run(feeds_of(form, 2000, 0, 0))
        for seed in range(4):
            session.run(feeds_of(form, 1, session.length, seed))
        addresses = {name: a.ctypes.data for name, a in session._buffers.arrays.items()}
        feeds = [feeds_of(form, 1, session.length + step, step) for step in range(20)]
        monkeypatch.setattr(session, "_run_anew", None)
        tracemalloc.start()
        try:
            for each in feeds:
                session.run(each)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A mask that is fed has 8 bytes for each row; what is derived from it, no more.
        assert peak < (49_152 if form in FED else 16_384)
        assert addresses == {name: a.ctypes.data for name, a in session._buffers.arrays.items()}
        (partition,) = session._methods["main"].method.partitions
        calls = {p.call for p in partition.bound.placements().values()}
        assert "NP_APPENDED_ATTENTION" in calls
        assert "NP_APPEND" in calls
        sizes = [p.shape for p in partition.bound.placements().values() if p.memory == "arena"]
        assert all(session.room not in shape for shape in sizes)


def test_sizes_of_a_model_may_have_any_name():
    """One named rows is not the number of rows that caches have."""
    model = onnx.parser.parse_model(
        onnx.printer.to_text(decoder("window_size")).replace("[B,S,24]", "[B,rows,24]")
    )
    assert model.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "rows"
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        follow(session, reference, partial(feeds_of, "window_size"), (7, 1, 1))


def test_buffers_grow():
    model = decoder("window_size")
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        follow(
            session,
            reference,
            partial(feeds_of, "window_size"),
            (250, 1, 1, 1, 1, 1, 1, 1, 1, 600, 1),
        )
        assert (session.length, session.room) == (859, 1024)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("Mul(i1, count)", "Mul(i1, S1)"),  # rows of another size
        ("Gather(flat, at)", "Gather(flat, off)"),  # the last column is of the next row
        ("Range(zero, B0, one)", "Range(one, B1_, one)"),  # the last row is behind the mask
        ("Shape(at)", "Concat <axis = 0> (T1, lead1, lead1, B1)"),  # axes in another order
    ],
)
def test_other_indices_into_a_flattened_mask_are_refused(here, there):
    """What is not proved to be the element of the same sequence and column is no mask."""
    masked = MASKS["flattened"].replace(here, there)
    assert masked != MASKS["flattened"]
    masked = "S1 = Unsqueeze(S0, lead) B1_ = Add(B0, one) " + masked
    masked = masked.replace("g5 =", "off = Add(at, one) g5 =")
    with (
        compile_model(decoder("flattened", masked=masked)) as program,
        program.session() as session,
    ):
        assert not isinstance(session, AppendingSession)
        assert "is no causal mask of attention" in session.reason
