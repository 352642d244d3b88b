"""`assert_equivalent` and `assert_signature_unchanged`, above all that they fail."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass_testing import (
    assert_equivalent,
    assert_signature_unchanged,
    model_from_text,
)

RELU = model_from_text("g (float[n] x) => (float[n] y) { y = Relu(x) }")


def test_equal_models() -> None:
    # Relu is the larger of 0 and x, which is computed another way here.
    other = model_from_text(
        "g (float[n] x) => (float[n] y) <float zero = {0}> { y = Max(x, zero) }"
    )
    assert_equivalent(RELU, other)


def test_other_values() -> None:
    other = model_from_text("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    with pytest.raises(AssertionError, match=r"output 'y': .* elements differ, first at \["):
        assert_equivalent(RELU, other)


def test_the_message_has_the_feeds_and_the_model() -> None:
    other = model_from_text("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    with pytest.raises(AssertionError, match=r"feeds: \{'x': array(.|\n)*y = Abs \(x\)"):
        assert_equivalent(RELU, other)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float[n] x) => (float[n] z) { z = Relu(x) }", r"outputs are \['z'\], not \['y'\]"),
        ("g (float[n] x) => (double[n] y) { r = Relu(x) y = Cast<to=11>(r) }", "float64"),
        (
            "g (float[n] x) => (float[1,n] y) <int64[1] a = {0}> { y = Unsqueeze(x, a) }",
            r"float32\[1, \d\], not float32\[\d\]",
        ),
    ],
)
def test_other_names_dtypes_and_shapes(graph: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_equivalent(RELU, model_from_text(graph))
    if "z" not in graph:
        with pytest.raises(AssertionError, match=message):
            assert_equivalent(RELU, model_from_text(graph), tolerance="rel:1")


def test_minus_zero_is_not_zero() -> None:
    """x + 0.0 is x, except for x = -0.0."""
    before = model_from_text("g (float[2] x) => (float[2] y) <float z = {0}> { y = Add(x, z) }")
    after = model_from_text("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    feeds = [{"x": np.array([1.0, -0.0], dtype=np.float32)}]
    with pytest.raises(AssertionError, match=r"first at \[1\]"):
        assert_equivalent(before, after, feeds=feeds)
    assert_equivalent(before, after, feeds=feeds, tolerance="rel:0")


def test_nan_is_like_nan_but_not_like_a_number() -> None:
    """x * 0 is 0, except for NaN and infinities."""
    before = model_from_text("g (float[40] x) => (float[40] y) { y = Sub(x, x) }")
    after = model_from_text(
        "g (float[40] x) => (float[40] y) <float z = {0}> { a = Abs(x) y = Mul(a, z) }"
    )
    assert_equivalent(before, after)
    assert_equivalent(before, after, special=True)
    zeros = model_from_text(
        "g (float[40] x) => (float[40] y) { s = Shape(x) y = ConstantOfShape(s) }"
    )
    assert_equivalent(before, zeros)
    with pytest.raises(AssertionError, match="nan"):
        assert_equivalent(before, zeros, special=True)


def test_tolerance() -> None:
    near = model_from_text(
        "g (float[n] x) => (float[n] y) <float s = {1.001}> { r = Relu(x) y = Mul(r, s) }"
    )
    assert_equivalent(RELU, near, tolerance="rel:2e-3")
    with pytest.raises(AssertionError, match="rel is"):
        assert_equivalent(RELU, near, tolerance="rel:5e-4")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_equivalent(RELU, near)
    with pytest.raises(ValueError, match="METRIC"):
        assert_equivalent(RELU, near, tolerance="1e-3")


def test_bfloat16_and_strings() -> None:
    for dtype in ("bfloat16", "string", "int8", "bool", "complex64"):
        model = model_from_text(f"g ({dtype}[3] x) => ({dtype}[3] y) {{ y = Identity(x) }}")
        assert_equivalent(model, model.clone())


def test_a_model_that_fails_alone() -> None:
    """An index that is out of range fails; a model that does not gather does not."""
    graph = "g (float[2] x, int64 i) => (float y) {{ {} }}"
    gather = model_from_text(graph.format("y = Gather(x, i)"))
    total = model_from_text(graph.format("y = ReduceSum<keepdims=0>(x)"))
    feeds = [{"x": np.ones(2, np.float32), "i": np.array(5)}]
    with pytest.raises(AssertionError, match="it fails"):
        assert_equivalent(total, gather, feeds=feeds)
    with pytest.raises(AssertionError, match="no longer does"):
        assert_equivalent(gather, total, feeds=feeds)


def test_nothing_compared_is_a_failure() -> None:
    gather = model_from_text("g (float[2] x, int64 i) => (float y) { y = Gather(x, i) }")
    bad = {"x": np.ones(2, np.float32), "i": np.array(5)}
    with pytest.raises(AssertionError, match="nothing was compared"):
        assert_equivalent(gather, gather.clone(), feeds=[bad])
    with pytest.raises(AssertionError, match="nothing was compared"):
        assert_equivalent(gather, gather.clone(), feeds=[])
    assert_equivalent(gather, gather.clone(), feeds=[bad, {**bad, "i": np.array(1)}])


def test_a_changed_default_is_found() -> None:
    """Random feeds leave inputs that have a default out with even seeds."""
    graph = "g (float[2] x, float[2] w = {{1, {}}}) => (float[2] y) {{ y = Add(x, w) }}"
    with pytest.raises(AssertionError, match="elements differ"):
        assert_equivalent(model_from_text(graph.format(2)), model_from_text(graph.format(3)))


def test_a_default_that_is_baked_in_is_found() -> None:
    graph = "g (float[2] x, float[2] w = {{1, 2}}) => (float[2] y) {}"
    before = model_from_text(graph.format("{ y = Add(x, w) }"))
    after = model_from_text(graph.format("<float[2] c = {1, 2}> { y = Add(x, c) }"))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_equivalent(before, after)


def test_sizes() -> None:
    """A model that is right for one size only is caught with others."""
    before = model_from_text("g (float[n] x) => (float[n] y) { y = Identity(x) }")
    after = model_from_text(
        "g (float[n] x) => (float[n] y) <int64[1] s = {3}> { y = Reshape(x, s) }"
    )
    assert_equivalent(before, after, sizes={"n": 3})
    with pytest.raises(AssertionError, match="it fails"):
        assert_equivalent(before, after, sizes={"n": 4})


def test_signature() -> None:
    assert_signature_unchanged(RELU, RELU.clone())
    other = model_from_text("g (float[n] x) => (float[n] z) { z = Relu(x) }")
    with pytest.raises(AssertionError, match="z"):
        assert_signature_unchanged(RELU, other)
    narrow = model_from_text("g (float16[n] x) => (float16[n] y) { y = Relu(x) }")
    with pytest.raises(AssertionError, match=r"(?i)float16"):
        assert_signature_unchanged(RELU, narrow)
