"""What `unpack-sequences` passes on directly."""

from __future__ import annotations

import numpy as np
import pytest
from folding_kit import check_bits, fold, initializer, ops, parse, run

from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.passes.unpack_sequences import UnpackSequences

NUMBERS = {"i": np.array(0), "j": np.array(1), "l": np.array(-1)}


@pytest.mark.parametrize(
    ("split", "taken", "sizes"),
    [
        (np.array([1, 3]), "a = SequenceAt(s, i) b = SequenceAt(s, j)", [1, 3]),
        (np.array(2), "a = SequenceAt(s, i) b = SequenceAt(s, l)", [2, 2]),
        (np.array(3), "a = SequenceAt(s, i) b = SequenceAt(s, l)", [3, 1]),
        (np.array([1, 2, 1]), "a = SequenceAt(s, i) b = SequenceAt(s, i)", [1, 2, 1]),
    ],
)
def test_a_split_to_a_sequence(split, taken, sizes):
    proto = parse(
        f"g (float[N, 4] x) => (float[?, ?] y) {{ s = SplitToSequence <axis = 1> (x, p) {taken}"
        " y = Concat <axis = 1> (a, b) }",
        initializers={"p": split, **NUMBERS},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Split", "Concat"]
    found = initializer(after, after.graph.node[0].input[1])
    assert np.frombuffer(found.raw_data, np.int64).tolist() == sizes
    check_bits(proto, after)


def test_outputs_keep_their_names():
    proto = parse(
        "g (float[4, N] x) => (float[?, ?] y, float[?, ?] z, float[?, ?] w) {"
        " s = SplitToSequence(x, p)"
        " y = SequenceAt(s, i) z = SequenceAt(s, j) w = SequenceAt(s, i) }",
        initializers={"p": np.array([1, 3]), **NUMBERS},
    )
    after, _, _ = fold(proto)
    assert [value.name for value in after.graph.output] == ["y", "z", "w"]
    assert sorted(ops(after)) == ["Identity", "Split"]
    check_bits(proto, after)


def test_elements_of_a_constructed_sequence():
    proto = parse(
        "g (float[N] x, float[N] v) => (float[?] y) { s = SequenceConstruct(x, v)"
        " a = SequenceAt(s, l) t = SequenceConstruct(a, x) y = ConcatFromSequence <axis = 0> (t) }",
        initializers=NUMBERS,
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Concat"]
    check_bits(proto, after)


@pytest.mark.parametrize(
    "body",
    [
        # read as a whole, at a place that is not known, without the axis, into a new axis
        "s = SplitToSequence(x, p) n = SequenceLength(s) a = SequenceAt(s, i) y = Expand(a, n1)",
        "s = SplitToSequence(x, p) y = SequenceAt(s, k)",
        "s = SplitToSequence <keepdims = 0> (x) y = SequenceAt(s, i)",
        "s = SequenceConstruct(x, x) y = ConcatFromSequence <axis = 0, new_axis = 1> (s)",
        "s = SequenceConstruct(x, x) e = SequenceErase(s, i) y = SequenceAt(e, i)",
    ],
)
def test_sequences_that_stay(body):
    body = body.replace("y = Expand(a, n1)", "m = Cast <to = 1> (n) y = Mul(a, m)")
    rank = 2 if "new_axis" in body or "keepdims" not in body else 1
    rank = 3 if "new_axis" in body else rank
    proto = parse(
        f"g (float[4, 3] x, int64 k) => (float[{', '.join('?' * rank)}] y) {{ {body} }}",
        initializers={"p": np.array([1, 3]), **NUMBERS},
    )
    typed = run(InferShapes(), proto)[0]
    assert ops(run(UnpackSequences(), typed)[0]) == ops(proto)
