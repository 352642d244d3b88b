"""Random feeds have the dtypes and shapes that the model declares."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from narrowpass_testing import model_from_text, random_feeds

TENSOR_TYPES = [
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name != "UNDEFINED" and number in {int(member) for member in ir.DataType}
]


def identity(elem_type: int, shape: list[int | str | None] | None) -> ir.Model:
    info = [helper.make_tensor_value_info(name, elem_type, shape) for name in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    return ir.from_proto(helper.make_model(helper.make_graph([node], "g", info[:1], info[1:])))


@pytest.mark.parametrize("elem_type", TENSOR_TYPES, ids=onnx.TensorProto.DataType.Name)
@pytest.mark.parametrize("special", [False, True])
def test_every_dtype(elem_type: int, *, special: bool) -> None:
    feed = random_feeds(identity(elem_type, [50, 4]), special=special)["x"]
    assert feed.dtype == ir.DataType(elem_type).numpy()
    assert feed.shape == (50, 4)
    assert len({str(element) for element in feed.flat}) > 1
    scalar = random_feeds(identity(elem_type, []), special=special)["x"]
    assert isinstance(scalar, np.ndarray)
    assert (scalar.dtype, scalar.shape) == (feed.dtype, ())


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "bfloat16"])
def test_special_values(dtype: str) -> None:
    model = model_from_text(f"g ({dtype}[100] x) => ({dtype}[100] y) {{ y = Identity(x) }}")
    wide = random_feeds(model, special=True)["x"].astype(np.float64)
    assert np.isnan(wide).any()
    assert np.isposinf(wide).any()
    assert np.isneginf(wide).any()
    assert (np.signbit(wide) & (wide == 0)).any()
    assert np.isfinite(random_feeds(model)["x"].astype(np.float64)).all()


def test_integers_are_small_and_fit() -> None:
    model = model_from_text(
        "g (int64[99] a, uint8[99] b, int4[99] c) => (int64[99] y) { y = Identity(a) }", opset=21
    )
    feeds = random_feeds(model)
    assert {int(feeds["a"].min()), int(feeds["a"].max())} == {-8, 8}
    assert {int(feeds["b"].min()), int(feeds["b"].max())} == {0, 8}
    assert feeds["c"].dtype == ml_dtypes.int4


def test_symbolic_dimensions_agree() -> None:
    model = model_from_text("g (float[n,m] x, float[m,n] y) => (float[n,n] z) { z = MatMul(x, y) }")
    seen = set()
    for seed in range(20):
        feeds = random_feeds(model, seed)
        assert feeds["x"].shape == feeds["y"].shape[::-1]
        seen.add(feeds["x"].shape)
    assert len(seen) > 5
    fixed = random_feeds(model, sizes={"n": 7, "m": 0})
    assert fixed["x"].shape == (7, 0)


def test_seeds() -> None:
    model = model_from_text("g (float[9] x) => (float[9] y) { y = Identity(x) }")
    assert (random_feeds(model, 3)["x"] == random_feeds(model, 3)["x"]).all()
    assert (random_feeds(model, 3)["x"] != random_feeds(model, 4)["x"]).any()


def test_inputs_with_a_default() -> None:
    model = model_from_text("g (float[1] x, float[1] w = {1}) => (float[1] y) { y = Add(x, w) }")
    assert list(random_feeds(model)) == ["x"]
    assert list(random_feeds(model, defaults=True)) == ["x", "w"]


def test_a_sequence() -> None:
    model = model_from_text("g (seq(float[2]) s) => (int64 y) { y = SequenceLength(s) }")
    feed = random_feeds(model)["s"]
    assert [array.shape for array in feed] == [(2,), (2,)]


def test_an_input_that_has_no_random_feed() -> None:
    with pytest.raises(ValueError, match="'x' has no shape: pass feeds of your own"):
        random_feeds(identity(onnx.TensorProto.FLOAT, None))
    optional = model_from_text("g (optional(float[2]) o) => (bool y) { y = OptionalHasElement(o) }")
    with pytest.raises(ValueError, match="'o' has type"):
        random_feeds(optional)
