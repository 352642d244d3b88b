"""Each limit of a backend, varied alone."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import UsageError
from narrowpass.runtime.quantization import (
    FixedOutput,
    OperatorSpec,
    Parameters,
    QuantizationSpec,
    ScaleBound,
    Violation,
)

SPEC = QuantizationSpec(
    smallest_scale=2.0**-100,
    operators={
        "Conv": OperatorSpec(ScaleBound("input * weight / output", 2.0**-32, 2.0**8)),
        "Add": OperatorSpec(ScaleBound("input / output", 2.0**-10, 2.0**8)),
        "Mul": OperatorSpec(ScaleBound("input * input / output", 2.0**-16, 2.0**8)),
        "LeakyRelu": OperatorSpec(ScaleBound("input / output", 2.0**-8, 2.0**7, closed=True)),
        "MaxPool": OperatorSpec(same=True),
        "Concat": OperatorSpec(same=True),
        "Softmax": OperatorSpec(output=FixedOutput("uint8", 2.0**-8, 0)),
    },
)


def scaled(*exponents, zero_point=0):
    return [Parameters(2.0**each, zero_point) for each in exponents]


def found(op_type, inputs, output, weights=None, **more):
    return SPEC.violations(op_type, inputs, output, weights, **more)


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
    assert above.limit == SPEC.bound(op_type).low
    assert above.measured < above.limit
    assert found(op_type, scaled(*inputs), Parameters(2.0**high * just, 0), weights) == []
    (below,) = found(op_type, scaled(*inputs), Parameters(2.0**high, 0), weights)
    assert (below.measured, below.limit) == (256.0, 256.0)
    assert below.name == SPEC.bound(op_type).ratio


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
    assert ScaleBound("input / output", 0.5, 256.0).violation([nearly]) is not None
    assert ScaleBound("input / output", 0.5, 256.0, closed=True).violation([nearly]) is None


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
    spec = QuantizationSpec()
    assert spec.violations("Conv", scaled(40), Parameters(1.0, 0), np.float32(1.0)) == []
    assert (spec.activations.dtype, spec.weights.low) == ("int8", -127)


@pytest.mark.parametrize(
    "given",
    [
        ("input - output", 0.0, 1.0),
        ("input / output", 1.0, 1.0),
    ],
)
def test_limits_that_cannot_be_kept(given):
    with pytest.raises(UsageError, match=r"a ScaleBound has the ratio|the bound of .* is empty"):
        ScaleBound(*given)


def test_those_of_the_native_backend():
    spec = pytest.importorskip("narrowpass_xnn_cpu.constraints").spec()
    assert spec.bound("Conv") == ScaleBound("input * weight / output", 2.0**-32, 256.0)
