"""What XNNPACK needs of quantized operators, as plain data for passes that choose scales.

Most limits of ratios are assertions in XNNPACK, which a release build leaves out: beyond them it
computes something else, and says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from narrowpass_xnn_cpu.native.operators.int8 import (
    HIGH,
    LOW,
    MULTIPLY_RATIO,
    PRODUCT_RATIO,
    SUM_RATIO,
)
from narrowpass_xnn_cpu.native.operators.quantized import (
    LEAST_WEIGHT,
    MOST_CHANNELS,
    SMALLEST_SCALE,
)


def _ratio(what: str, limits: tuple[float, float]) -> dict[str, Any]:
    low, high = limits
    return {"what": what, "low": low, "high": high}


_PRODUCT = _ratio("input * weight / output", PRODUCT_RATIO)
_SUM = _ratio("input / output", SUM_RATIO)

_CONSTRAINTS: dict[str, Any] = {
    "activations": {"dtype": "int8", "range": (LOW, HIGH)},
    "weights": {
        "dtype": "int8",
        "range": (LEAST_WEIGHT, HIGH),
        "zero_point": None,
        "axis": "output",
    },
    "smallest_scale": SMALLEST_SCALE,
    "ratios": {
        "Conv": _PRODUCT,
        "ConvTranspose": _PRODUCT,
        "MatMul": _PRODUCT,
        "Gemm": _PRODUCT,
        "Add": _SUM,
        "Sub": _SUM,
        "GlobalAveragePool": _SUM,
        "ReduceMean": _SUM,
        "Mul": _ratio("input * input / output", MULTIPLY_RATIO),
    },
    "dynamic": {"operators": ("MatMul", "Gemm"), "most_channels": MOST_CHANNELS},
}


def constraints() -> Mapping[str, Any]:
    """Give the limits; see `XnnCpuBackend.quantization_constraints`. The caller owns the copy."""
    return copy.deepcopy(_CONSTRAINTS)
