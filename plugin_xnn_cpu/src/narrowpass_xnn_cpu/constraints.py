"""The backend's quantization spec: operators with int8 kernels, and limits of their scales.

Most limits of ratios of scales are assertions in XNNPACK, which a release build does not check:
beyond them its results are wrong without an error.
"""

from __future__ import annotations

from narrowpass.runtime.quantization import (
    ANY_OPERATOR,
    INPUT_TO_OUTPUT,
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    IntegerRange,
    OperatorSpec,
    PerTokenQuantization,
    QuantizationSpec,
    ScaleBound,
)
from narrowpass_ir.movement import DATA_MOVEMENT
from narrowpass_xnn_cpu.lower.int8.tables import POINTWISE
from narrowpass_xnn_cpu.native.problems.quantization import (
    ADD_RATIO,
    HIGH,
    LEAST_WEIGHT,
    LOW,
    MATMUL_RATIO,
    MAX_TERMS,
    MULTIPLY_RATIO,
    SMALLEST_SCALE,
)

_MATMUL = OperatorSpec(ScaleBound(WEIGHT_TO_OUTPUT, *MATMUL_RATIO))
_ADD = OperatorSpec(ScaleBound(INPUT_TO_OUTPUT, *ADD_RATIO))
_MULTIPLY = OperatorSpec(ScaleBound(INPUTS_TO_OUTPUT, *MULTIPLY_RATIO))

_SPEC = QuantizationSpec(
    activations=IntegerRange("int8", LOW, HIGH),
    weights=IntegerRange("int8", LEAST_WEIGHT, HIGH),
    weight_zero_points=True,
    smallest_scale=SMALLEST_SCALE,
    operators={
        **dict.fromkeys(POINTWISE | DATA_MOVEMENT, ANY_OPERATOR),
        **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm"), _MATMUL),
        **dict.fromkeys(("Add", "Sub", "GlobalAveragePool", "ReduceMean"), _ADD),
        "Mul": _MULTIPLY,
        "QuantizeLinear": ANY_OPERATOR,
    },
    others=None,
    per_token=PerTokenQuantization(frozenset({"MatMul", "Gemm"}), MAX_TERMS),
)


def spec() -> QuantizationSpec:
    """Return the spec; see `XnnCpuBackend.quantization_spec`."""
    return _SPEC
