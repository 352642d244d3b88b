"""What `merge-transposes` merges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from folding_kit import check_bits, check_close, fold, ops, parse, run

from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.merge_transposes import MergeTransposes

PERMS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(PERMS, PERMS)))
def test_two_transposes_merge_or_cancel(first, second):
    proto = parse(
        f"g (float[2, N, 4] x) => (float[?, ?, ?] y) {{ t = Abs(x)"
        f" a = Transpose <perm = {list(first)}> (t) b = Transpose <perm = {list(second)}> (a)"
        " y = Neg(b) }"
    )
    after, _, _ = fold(proto)
    none = [first[axis] for axis in second] == [0, 1, 2]
    assert ops(after) == (["Abs", "Neg"] if none else ["Abs", "Transpose", "Neg"])
    for size in (0, 3):
        check_bits(proto, after, N=size)


def test_the_default_reverses_all_axes():
    proto = parse(
        "g (float[2, N, 4] x) => (float[?, ?, ?] y){ a = Transpose(x) b = Transpose(a) y = Neg(b) }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Neg"]
    check_bits(proto, after)


def test_the_first_stays_for_its_other_readers():
    proto = parse(
        "g (float[2, N, 4] x) => (float[?, ?, ?] y, float[?, ?, ?] z) {"
        " a = Transpose <perm = [1, 0, 2]> (x) y = Neg(a) z = Transpose <perm = [0, 2, 1]> (a) }"
    )
    after, _, ctx = run(MergeTransposes(), proto)
    assert ops(after) == ["Transpose", "Neg", "Transpose"]
    assert list(after.graph.node[2].input) == ["x"]
    assert ctx.counters["merged"] == 1
    check_bits(proto, after)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_transpose_fuses_into_gemm(trans_a, trans_b):
    proto = parse(
        "g (float[3, 3] x, float[3, 3] v, float[3] c) => (float[3, 3] y) {"
        " a = Transpose(x) b = Transpose <perm = [1, 0]> (v)"
        f" y = Gemm <transA = {trans_a}, transB = {trans_b}, alpha = 0.5> (a, b, c) }}"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Gemm"]
    check_close(proto, after, 1e-6)


def test_a_transpose_to_outputs_keeps_their_names():
    proto = parse(
        "g (float[2, 3] x) => (float[3, 2] y, float[2, 3] z) { y = Transpose(x) z = Transpose(y) }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Transpose", "Transpose"] or ops(after) == ["Transpose", "Identity"]
    check_bits(proto, after)


def test_a_tied_weight_is_not_stored_twice():
    # The output embedding of a language model: the input embedding transposed.
    proto = parse(
        "g (int64[N] i) => (float[N, 64] y) { e = Gather(w, i) t = Transpose(w) y = MatMul(e, t) }",
        initializers={"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)},
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["Gather", "Transpose", "MatMul"]
    assert [item.name for item in after.graph.initializer] == ["w"]
    assert ctx.counters["too-large"] == 1


def test_kept_and_in_a_branch():
    proto = parse(
        """g (float[2, 3] x, bool c) => (float[2, 3] y) {
        y = If(c) <then_branch = t () => (float[2, 3] p) {
                       [a] u = Transpose(x) [b] v = Transpose(u) p = Neg(v) },
                   else_branch = e () => (float[2, 3] q) { q = Abs(x) }> }"""
    )
    for keep in (("a",), ("b",)):
        after, _, ctx = run(Fold(keep=keep), proto)
        assert not ctx.counters["merged"]
    after, _, _ = fold(proto)
    branch = after.graph.node[0].attribute[0].g
    assert [node.op_type for node in branch.node] == ["Neg"]
    check_bits(proto, after)
