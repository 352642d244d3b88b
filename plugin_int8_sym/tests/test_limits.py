"""Each limit of a backend, varied alone."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import UsageError
from narrowpass_int8_sym.limits import Bound, Limits, Violation
from narrowpass_int8_sym.scales import Parameters

CONSTRAINTS = {
    "activations": {"dtype": "int8", "range": (-128, 127)},
    "weights": {"dtype": "int8", "range": (-127, 127), "zero_point": 0},
    "smallest_scale": 2.0**-100,
    "ratios": {
        "Conv": {"what": "input * weight / output", "low": 2.0**-32, "high": 2.0**8},
        "Add": {"what": "input / output", "low": 2.0**-10, "high": 2.0**8},
        "Mul": {"what": "input * input / output", "low": 2.0**-16, "high": 2.0**8},
        "LeakyRelu": {"what": "input / output", "low": 2.0**-8, "high": 2.0**7, "closed": True},
    },
    "same_quantization": ("MaxPool", "Concat"),
    "fixed_outputs": {"Softmax": {"dtype": "uint8", "scale": 2.0**-8, "zero_point": 0}},
}
LIMITS = Limits.of(CONSTRAINTS)


def scaled(*exponents, zero_point=0):
    return [Parameters(2.0**each, zero_point) for each in exponents]


def found(op_type, inputs, output, weights=None, **more):
    return LIMITS.violations(op_type, inputs, output, weights, **more)


@pytest.mark.parametrize(
    ("op_type", "inputs", "weights", "low", "high"),
    [
        ("Conv", (0,), 2.0 ** np.array([0.0, -1.0], np.float32), -1 + 32, -8),
        ("Add", (0, 0), None, 10, -8),
        ("Mul", (1, -1), None, 16, -8),
    ],
)
def test_low_is_allowed_and_high_is_not(op_type, inputs, weights, low, high):
    just = 1 + 2.0**-20
    assert found(op_type, scaled(*inputs), Parameters(2.0**low, 0), weights) == []
    (above,) = found(op_type, scaled(*inputs), Parameters(2.0**low * just, 0), weights)
    assert above.limit == LIMITS.ratios[op_type].low
    assert above.measured < above.limit
    assert found(op_type, scaled(*inputs), Parameters(2.0**high * just, 0), weights) == []
    (below,) = found(op_type, scaled(*inputs), Parameters(2.0**high, 0), weights)
    assert (below.measured, below.limit) == (256.0, 256.0)
    assert below.name == LIMITS.ratios[op_type].what


def test_a_closed_bound_allows_both_ends():
    assert found("LeakyRelu", scaled(7), Parameters(1.0, 0)) == []
    assert found("LeakyRelu", scaled(-8), Parameters(1.0, 0)) == []
    (above,) = found("LeakyRelu", scaled(7.01), Parameters(1.0, 0))
    assert above.limit == 128.0


def test_the_slope_counts_too():
    (below,) = found("LeakyRelu", scaled(0), Parameters(1.0, 0), slope=-(2.0**-9))
    assert below == Violation("input / output", 2.0**-9, 2.0**-8)
    assert found("LeakyRelu", scaled(0), Parameters(1.0, 0), slope=0.0) == []


def test_ratios_are_rounded_as_kernels_compute_them():
    nearly = 256.0 * (1 - 2.0**-30)
    assert Bound("input / output", 0.5, 256.0).broken([nearly]) is not None
    assert Bound("input / output", 0.5, 256.0, closed=True).broken([nearly]) is None


def test_the_smallest_scale():
    (broken,) = found("Sigmoid", scaled(-101), Parameters(1.0, 0))
    assert broken == Violation("smallest scale", 2.0**-101, 2.0**-100)
    weights = np.array([1.0, 2.0**-101], np.float32)
    assert found("Gemm", scaled(0), Parameters(1.0, 0), weights) == [broken]
    assert found("Gemm", scaled(0), None, weights) == [broken]


def test_the_same_quantization():
    assert found("MaxPool", scaled(0, zero_point=3), Parameters(1.0, 3)) == []
    names = [each.name for each in found("Concat", scaled(0, 1), Parameters(1.0, 1))]
    assert names == ["scale of input and output", "zero point of input and output"]


def test_the_only_quantization_of_a_result():
    assert found("Softmax", scaled(0), Parameters(2.0**-8, 0)) == []
    (broken,) = found("Softmax", scaled(0), Parameters(2.0**-8, -128))
    assert (broken.measured, broken.limit) == (-128, 0)


def test_a_float_result_has_no_ratio():
    assert found("Conv", scaled(30), None, np.float32(2.0**30)) == []


def test_a_backend_without_limits():
    limits = Limits.of({})
    assert limits.violations("Conv", scaled(40), Parameters(1.0, 0), np.float32(1.0)) == []
    assert (limits.activations.dtype, limits.weights.low) == ("int8", -127)


@pytest.mark.parametrize(
    "given",
    [
        {"what": "input - output", "low": 0.0, "high": 1.0},
        {"what": "input / output", "low": 1.0, "high": 1.0},
    ],
)
def test_limits_that_cannot_be_kept(given):
    with pytest.raises(UsageError, match="a backend limits"):
        Limits.of({"ratios": {"Add": given}})


def test_those_of_the_native_backend():
    backends = pytest.importorskip("narrowpass_xnn_cpu.constraints")
    limits = Limits.of(backends.constraints())
    assert limits.ratios["Conv"] == Bound("input * weight / output", 2.0**-32, 256.0)
