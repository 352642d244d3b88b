"""Sequences against onnxruntime, in loops and alone."""

from __future__ import annotations

import numpy as np
import pytest
from flow_kit import agrees, floats, model_of
from xnn_kit import compile_model

from narrowpass.errors import BackendError

SEQUENCE = """g (int64 n, float[2] x) => (float[K] y, int64 m, float[2] first) {
    e = SequenceEmpty<dtype = 1>() s0 = SequenceInsert(e, x)
    s = Loop (n, , s0) <body = b (int64 i, bool c, seq(float[2]) t) => (bool d, seq(float[2]) u) {
        d = Identity(c) k = SequenceLength(t) one = Constant<value = int64 {1}>() j = Sub(k, one)
        last = SequenceAt(t, j) next = Add(last, x) u = SequenceInsert(t, next) }>
    y = ConcatFromSequence<axis = 0>(s) m = SequenceLength(s) zero = Constant<value = int64 {0}>()
    first = SequenceAt(s, zero) }"""


def test_loops_that_carry_sequences():
    program = agrees(
        model_of(SEQUENCE), *({"n": np.array(n), "x": floats(2)} for n in (3, 0, 1, 20))
    )
    assert not any(plan.reason for plan in program.explain())


@pytest.mark.parametrize(
    ("body", "feeds"),
    [
        ("s = SplitToSequence<axis = 1>(x) y = ConcatFromSequence<axis = 0>(s)", {}),
        (
            (
                "s = SplitToSequence<axis = 1, keepdims = 0>(x)"
                " y = ConcatFromSequence<axis = -1, new_axis = 1>(s)"
            ),
            {},
        ),
        ("s = SplitToSequence<axis = -1>(x, k) y = ConcatFromSequence<axis = 1>(s)", {"k": 2}),
        (
            "s = SplitToSequence<axis = 1>(x, k) t = SequenceErase(s, p) y = SequenceAt(t, p)",
            {"k": [1, 3, 1], "p": -1},
        ),
        ("s = SequenceConstruct(x, x) t = SequenceErase(s) y = SequenceAt(t, p)", {"p": 0}),
        (
            (
                "z = Neg(x) s = SequenceConstruct(x, x) t = SequenceInsert(s, z, p)"
                " y = ConcatFromSequence<axis = 0>(t)"
            ),
            {"p": -1},
        ),
        (
            (
                "z = Neg(x) s = SequenceConstruct(x, x) t = SequenceInsert(s, z, p)"
                " y = ConcatFromSequence<axis = 0>(t)"
            ),
            {"p": 2},
        ),
    ],
)
def test_operators_of_sequences(body, feeds):
    given = {name: np.array(value, np.int64) for name, value in feeds.items()}
    formals = "".join(
        f", int64{list(v.shape) if v.ndim else ''} {name}" for name, v in given.items()
    )
    model = model_of(f"g (float[2, 5] x{formals}) => (float[A, B] y) {{ {body} }}")
    program = agrees(model, {"x": floats(2, 5), **given})
    assert not any(plan.reason for plan in program.explain())


@pytest.mark.parametrize("position", [2, -3])
@pytest.mark.parametrize("kind", ["SequenceAt", "SequenceErase"])
def test_positions_beyond_a_sequence_are_errors(kind, position):
    behind = "" if kind == "SequenceAt" else " r = SequenceLength(y)"
    result = "float[A] y" if kind == "SequenceAt" else "int64 r"
    model = model_of(
        f"g (float[3] x, int64 p) => ({result}) {{ s = SequenceConstruct(x, x) y = {kind}(s, p)"
        f"{behind} }}"
    )
    with pytest.raises(BackendError, match=f"position {position} is not one of 2 elements"):
        compile_model(model).run({"x": floats(3), "p": np.array(position)})


def test_result_sequences_share_no_memory_with_feeds():
    model = model_of("g (float[3] x) => (seq(float[3]) y) { y = SequenceConstruct(x, x) }")
    x = floats(3)
    got = compile_model(model).run({"x": x})["y"]
    assert len(got) == 2
    for array in got:
        np.testing.assert_array_equal(array, x)
        assert not np.shares_memory(array, x)
