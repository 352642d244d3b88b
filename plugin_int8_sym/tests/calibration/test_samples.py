"""What is refused of calibration data, by all that take it: which input, and which sample."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats, model
from onnx import helper

import narrowpass
from narrowpass.errors import DataError

NODES = [
    helper.make_node("MatMul", ["x", "w"], ["a"]),
    helper.make_node("Relu", ["a"], ["r"]),
    helper.make_node("MatMul", ["r", "w2"], ["y"]),
]
TAKERS = [
    "int8-sym",
    "int8-sym{calibrator=minmax,smooth=false,bias-correction=false}",
    "int8-sym{calibrator=moving-average,smooth=false,bias-correction=false}",
    "int8-sym{mode=dynamic,tolerance=cosine:0.9}",
    "int8-sym{mode=weight-only,tolerance=cosine:0.9}",
    "equalize",
    "fp16",
    "fp16{tolerance=cosine:0.9}",
]
GOOD = {"x": floats(4, 16)}


def build(text: str, data, extra: bool = False):
    if text.startswith("fp16"):
        pytest.importorskip("narrowpass_fp16")
    inputs = {"x": ["N", 16], "unused": ["M"]} if extra else {"x": ["N", 16]}
    constants = {"w": floats(16, 16), "w2": floats(16, 16)}
    proto = model(NODES, inputs, {"y": ["N", 16]}, constants)
    return narrowpass.build(
        ir.from_proto(proto), text, target="reference", calibration=lambda: iter(data)
    )


@pytest.mark.parametrize("text", TAKERS)
def test_a_batch_of_0_is_refused(text):
    with pytest.raises(DataError, match=r"sample 2 of .* no elements: input 'x' .*\[0, 16\]"):
        build(text, [GOOD, {"x": np.zeros((0, 16), np.float32)}])


@pytest.mark.parametrize("text", TAKERS)
def test_a_batch_of_0_is_refused_beside_inputs_with_elements(text):
    some = {"unused": np.ones(3, np.float32)}
    with pytest.raises(DataError, match=r"sample 2 of .* no elements: input 'x' .*\[0, 16\]"):
        build(text, [GOOD | some, {"x": np.zeros((0, 16), np.float32)} | some], extra=True)


@pytest.mark.parametrize("text", TAKERS)
def test_an_input_without_elements_is_no_reason(text):
    """Such as the cache of a decoder before the first step."""
    build(text, [GOOD | {"unused": np.zeros(0, np.float32)}], extra=True)


@pytest.mark.parametrize("text", TAKERS)
def test_nan_is_refused(text):
    bad = GOOD["x"].copy()
    bad[1, 3] = np.nan
    with pytest.raises(DataError, match=r"(?s)'x'.*sample 2|sample 2.*'x'"):
        build(text, [GOOD, {"x": bad}])


@pytest.mark.parametrize("text", TAKERS)
def test_no_samples_are_refused(text):
    with pytest.raises(DataError, match="holds no samples"):
        build(text, [])


@pytest.mark.parametrize("text", TAKERS)
@pytest.mark.parametrize(
    "bad",
    [np.zeros((4, 16)), np.zeros((4, 15), np.float32), np.zeros(16, np.float32)],
    ids=["type", "size", "rank"],
)
def test_what_does_not_fit_names_input_and_sample(text, bad):
    with pytest.raises(DataError, match=r"sample 2 of .*input 'x' .*takes"):
        build(text, [GOOD, {"x": bad}])


@pytest.mark.parametrize("text", TAKERS)
def test_what_is_missing_names_input_and_sample(text):
    with pytest.raises(DataError, match=r"sample 2 of .*nothing is fed to x"):
        build(text, [GOOD, {}])
