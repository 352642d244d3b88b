"""What is computed in int8 here, and what XNNPACK needs of its scales.

Most limits of ratios are assertions in XNNPACK, which a release build leaves out: beyond them it
computes something else, and says nothing.
"""

from __future__ import annotations

from narrowpass.ir.movement import DATA_MOVEMENT
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
from narrowpass_xnn_cpu.lower.int8.tables import POINTWISE
from narrowpass_xnn_cpu.native.problems.quantization import (
    HIGH,
    LEAST_WEIGHT,
    LOW,
    MOST_CHANNELS,
    MULTIPLY_RATIO,
    PRODUCT_RATIO,
    SMALLEST_SCALE,
    SUM_RATIO,
)

_MATMUL = OperatorSpec(ScaleBound(WEIGHT_TO_OUTPUT, *PRODUCT_RATIO))
_ADD = OperatorSpec(ScaleBound(INPUT_TO_OUTPUT, *SUM_RATIO))
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
    per_token=PerTokenQuantization(frozenset({"MatMul", "Gemm"}), MOST_CHANNELS),
)


def spec() -> QuantizationSpec:
    """Give what `XnnCpuBackend.quantization_spec` does."""
    return _SPEC
