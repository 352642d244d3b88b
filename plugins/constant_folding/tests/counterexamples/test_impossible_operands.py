"""Nodes that judging must not end a build with, nor keep from folding."""

from __future__ import annotations

import numpy as np
import pytest
from folding_kit import check_bits, fold, ops, parse


def test_a_range_of_more_elements_than_there_are_numbers():
    model = parse(
        "g (float[1] x) => (float[1] y) { r = Range(s, l, d) n = ReduceMax<keepdims=0>(r) "
        "y = Add(x, n) }",
        initializers={"s": np.float32(0), "l": np.float32(3e38), "d": np.float32(1e-5)},
    )
    after, _, _ = fold(model)
    assert "Range" in ops(after)


@pytest.mark.parametrize(("to", "kind"), [(1, "float"), (7, "int64"), (10, "float16")])
def test_calls_with_attributes_of_the_caller_fold(to, kind):
    model = parse(
        f"""g (float[3] x) => ({kind}[3] y) {{ c = d.F <kind = {to}> (w) y = Identity(c) }}
        <opset_import: ["" : 17], domain: "d">
        F <kind> (a) => (b) {{ b = Cast <to: int = @kind> (a) }}""",
        more=', "d" : 1',
        initializers={"w": np.array([1.5, -2.0, 0.25], np.float32)},
    )
    after, _, _ = fold(model)
    assert "F" not in ops(after)
    check_bits(model, after)
