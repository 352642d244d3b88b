"""Graphs that read the rows of caches in rare ways: followed exactly, or refused with a reason.

Beside onnx's evaluator with caches as feeds.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from masks_kit import Reference, assert_close, decoder, feeds_of, follow
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass.errors import DataError
from narrowpass_planning.state.session import AppendingSession

BRANCH = """y9 = Add(x, o) y = If (flag) <
    then_branch = a () => (float[B, S, 24] y1) { READ f = Cast <to = 1> (n) y1 = Add(y9, f) },
    else_branch = b () => (float[B, S, 24] y2) { y2 = Identity(y9) }>"""
ADDED = " f = Cast <to = 1> (n) f0 = ReduceSum <keepdims = 0> (f) y9 = Add(x, o) y = Add(y9, f0)"
LASTS = {
    "a branch": BRANCH.replace("READ", "n = Identity(P0)"),
    "the shape in a branch": BRANCH.replace("READ", "inner = Shape(past_k) n = Gather(inner, i2)"),
    "a slice from far before the front": """from = Constant <value_ints = [-6]> ()
    to = Constant <value_ints = [9]> () n = Slice(ps, from, to, lead)"""
    + ADDED,
    "a narrow integer": """more = Constant <value_int = 300> () sum = Add(P0, more)
    n = Cast <to = 2> (sum)"""
    + ADDED,
    "an axis that is squeezed": "n = Squeeze(positions, lead)" + ADDED,
}


@pytest.mark.parametrize("name", LASTS)
def test_results_are_right(name):
    branch = "If" in LASTS[name]
    model = decoder("added", LASTS[name], more=", bool flag" if branch else "")
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        # The axis has one position: what is squeezed is a token's.
        for step, rows in enumerate((1, 1, 1) if "squeezed" in name else (5, 1, 1, 4, 1)):
            feeds = feeds_of("added", rows, session.length, step)
            if branch:
                feeds["flag"] = np.array(step != 2)
                assert "of a subgraph reads" in session.reason
            assert_close(session.run(feeds)["y"], reference.run(feeds))


def test_a_mask_of_one_row_for_all_queries():
    """It is not causal: each row of a prompt sees what the first one does."""
    masked = """seen = LessOrEqual(columns, P0) m0 = Where(seen, none, low)
    m = Unsqueeze(m0, lead) s2 = Add(s1, m)"""
    model = decoder("added", masked=masked)
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        assert "is no causal mask of attention" in session.reason
        follow(session, reference, partial(feeds_of, "added"), (5, 1, 4, 1))


def test_a_token_refuses_what_a_prompt_refuses():
    """Masks that a session reads and does not feed are checked in each run; the state stays."""
    model = decoder("padded")
    with compile_model(model) as program, program.session() as session:
        assert isinstance(session, AppendingSession)
        for step, rows in enumerate((4, 1, 1)):
            session.run(feeds_of("padded", rows, session.length, step))
        right = feeds_of("padded", 1, session.length, 9)
        for wrong in (
            np.ones((1, 7), np.float32),
            np.full((1, 7), np.nan, np.float32),
            np.ones((9, 7), np.int64),
            np.array([["a"] * 7]),
        ):
            with pytest.raises(DataError, match="attention_mask"):
                session.run({**right, "attention_mask": wrong})
            assert session.length == 6
        with pytest.raises(DataError, match="attention_mask"):
            session.run({"x": right["x"]})
        session.run(right)
        assert session.length == 7


def test_damaged_narrow_files_keep_the_state(tmp_path):
    model = decoder("added")
    with compile_model(model) as program, program.session("float16") as session:
        session.run(feeds_of("added", 4, 0, 0))
        session.save(tmp_path / "state.npz")
        before = session.values()
        with np.load(tmp_path / "state.npz") as file:
            arrays = dict(file)
        name = next(name for name in arrays if name.endswith("past_k"))
        arrays["state.past_k"] = np.zeros((1, 2, 9, 6), np.float32)
        assert name == "float16.past_k"
        np.savez(tmp_path / "twice.npz", **arrays)
        with pytest.raises(DataError, match="twice"):
            session.load(tmp_path / "twice.npz")
        assert session.length == 4
        for state, value in session.values().items():
            np.testing.assert_array_equal(value, before[state])


TWO_MASKS = """
<ir_version: 9, opset_import: ["" : 18]>
attend (float[B, 2, S, 4] q, float[B, 2, S, 4] k, float[B, 2, S, 4] v,
        float[B, 1, 1, 1] one, float[B, 1, S, T] whole,
        float[B, 2, P, 4] past_k, float[B, 2, P, 4] past_v)
    => (float[B, 2, S, 4] y, float[B, 2, T, 4] present_k, float[B, 2, T, 4] present_v) {
    present_k = Concat <axis = 2> (past_k, k)
    present_v = Concat <axis = 2> (past_v, v)
    t = Transpose <perm = [0, 1, 3, 2]> (present_k)
    s0 = MatMul(q, t)
    s1 = Add(s0, FIRST)
    s2 = Add(s1, SECOND)
    p = Softmax <axis = -1> (s2)
    y = MatMul(p, present_v)
}"""


@pytest.mark.parametrize("names", [("one", "whole"), ("whole", "one")])
def test_two_masks_of_which_one_has_a_column_for_each_row(names):
    text = TWO_MASKS.replace("FIRST", names[0]).replace("SECOND", names[1])
    model = onnx.parser.parse_model(text)
    evaluator = ReferenceEvaluator(model)
    rng = np.random.default_rng(0)
    caches = {name: np.zeros((2, 2, 0, 4), np.float32) for name in ("past_k", "past_v")}
    with compile_model(model) as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        for rows in (5, 1, 1, 40, 1):
            shapes = dict.fromkeys("qkv", (2, 2, rows, 4)) | {"one": (2, 1, 1, 1)}
            shapes["whole"] = (2, 1, rows, session.length + rows)
            feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
            y, caches["past_k"], caches["past_v"] = evaluator.run(None, feeds | caches)
            assert_close(session.run(feeds)["y"], y)
