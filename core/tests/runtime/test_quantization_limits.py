"""The limits of a backend on quantization, beside arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import UsageError
from narrowpass.runtime.quantization import (
    INPUT_TO_OUTPUT,
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    FixedOutput,
    OperatorSpec,
    Parameters,
    QuantizationSpec,
    ScaleBound,
)


def spec(**operators):
    return QuantizationSpec(operators=operators)


def names(found):
    return [each.name for each in found]


def test_bounds_are_intervals_of_known_ratios():
    with pytest.raises(UsageError, match="has the ratio 'x'; pass one of 'input / output'"):
        ScaleBound("x", 0.0, 1.0)
    for low, high in ((1.0, 1.0), (2.0, 1.0), (-1.0, 1.0)):
        with pytest.raises(UsageError, match="is empty"):
            ScaleBound(INPUT_TO_OUTPUT, low, high)


@pytest.mark.parametrize(
    ("ratio", "inputs", "weights", "output", "wanted"),
    [
        (INPUT_TO_OUTPUT, [0.5, 0.25], None, 0.125, [4.0, 2.0]),
        (INPUTS_TO_OUTPUT, [0.5, 0.25], None, 0.125, [1.0]),
        (WEIGHT_TO_OUTPUT, [0.5], None, 0.125, [4.0]),
        (WEIGHT_TO_OUTPUT, [0.5], np.array([1.0, 2.0], np.float32), 0.125, [4.0, 8.0]),
    ],
)
def test_ratios(ratio, inputs, weights, output, wanted):
    assert [*ScaleBound(ratio, 0.0, 1.0).ratios(inputs, weights, output)] == wanted


@pytest.mark.parametrize(
    ("closed", "ratios", "broken"),
    [
        (False, [], None),
        (False, [1.0, 3.9], None),
        (False, [4.0], (4.0, 4.0)),
        (True, [4.0], None),
        (True, [0.5, 5.0], (5.0, 4.0)),
        (True, [0.5, 0.25], (0.25, 1.0)),
        (True, [float("nan")], "nan"),
        (True, [1e300], (float("inf"), 4.0)),  # rounded to float32
    ],
)
def test_the_ratio_farthest_outside_is_named(closed, ratios, broken):
    found = ScaleBound(INPUT_TO_OUTPUT, 1.0, 4.0, closed).violation(ratios)
    if broken == "nan":
        assert found is not None
        assert np.isnan(found.measured)
        return
    assert (None if found is None else (found.measured, found.limit)) == broken


def test_what_is_known_of_an_operator():
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.5, 2.0)
    fixed = FixedOutput("int8", 1 / 256, -128)
    known = spec(
        Add=OperatorSpec(bound=bound),
        MaxPool=OperatorSpec(same=True),
        Sigmoid=OperatorSpec(output=fixed),
    )
    assert known.bounded == {"Add"}
    assert (known.bound("Add"), known.bound("MaxPool")) == (bound, None)
    assert (known.same("MaxPool"), known.same("Add")) == (True, False)
    assert (known.output("Sigmoid"), known.output("Add")) == (fixed, None)
    assert fixed.parameters == Parameters(1 / 256, -128)


def test_violations_of_each_limit():
    bound = ScaleBound(INPUT_TO_OUTPUT, 0.5, 2.0)
    fixed = FixedOutput("int8", 0.5, 1)
    known = spec(
        Add=OperatorSpec(bound=bound),
        LeakyRelu=OperatorSpec(bound=bound),
        MaxPool=OperatorSpec(same=True),
        Sigmoid=OperatorSpec(output=fixed),
    )
    one = Parameters(1.0, 0)
    assert known.violations("Add", [one, one], Parameters(1.0, 7)) == []
    assert names(known.violations("Add", [Parameters(3.0, 0)], one)) == [INPUT_TO_OUTPUT]
    # Nothing is requantized where the result is float.
    assert known.violations("Add", [Parameters(3.0, 0)], None) == []
    # By a slope of 0.25 the ratio is 0.25, too.
    assert known.violations("LeakyRelu", [one], one) == []
    assert names(known.violations("LeakyRelu", [one], one, slope=-0.25)) == [INPUT_TO_OUTPUT]
    assert known.violations("LeakyRelu", [one], one, slope=0.0) == []
    other = Parameters(2.0, 3)
    assert names(known.violations("MaxPool", [one, other, other], one)) == [
        "scale of input and output",
        "zero point of input and output",
    ]
    assert known.violations("MaxPool", [one], one) == []
    assert known.violations("Sigmoid", [one], Parameters(0.5, 1)) == []
    (broken,) = known.violations("Sigmoid", [one], Parameters(0.5, 2))
    assert str(broken) == "zero point of output and its only quantization is 2, the limit 1"


def test_scales_of_operands_results_and_weights_are_not_too_small():
    known = QuantizationSpec(operators={"Conv": OperatorSpec()}, smallest_scale=0.125)
    one, small = Parameters(1.0, 0), Parameters(0.0625, 0)
    assert known.violations("Conv", [one], one, np.array([0.125, 1.0], np.float32)) == []
    for inputs, output, weights in (
        ([small], one, None),
        ([one], small, None),
        ([one], None, np.array([1.0, 0.0625], np.float32)),
    ):
        (broken,) = known.violations("Conv", inputs, output, weights)
        assert (broken.name, broken.measured, broken.limit) == ("smallest scale", 0.0625, 0.125)
    # An operator that is not computed in int8 has no limits of its own.
    wide = QuantizationSpec(others=None)
    assert (wide.bound("Exp"), wide.same("Exp"), wide.output("Exp")) == (None, False, None)
    assert wide.violations("Exp", [one], one) == []
    # Of nothing there is no least scale.
    assert known.violations("Conv", [], None) == []
