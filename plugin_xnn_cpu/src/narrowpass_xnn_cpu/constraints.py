"""What XNNPACK needs of quantized operators, as plain data for passes that choose scales.

Most limits of ratios are assertions in XNNPACK, which a release build leaves out: beyond them it
computes something else, and says nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from narrowpass_xnn_cpu.native.operators.quantized import (
    MOST_CHANNELS,
    SMALLEST_SCALE,
    WEIGHTS_RANGE,
)

_PRODUCT = {"what": "input * weight / output", "low": 2.0**-32, "high": 2.0**8}
_SUM = {"what": "input / output", "low": 2.0**-10, "high": 2.0**8}
_CONVERSION = {"what": "input / output", "low": 2.0**-8, "high": 2.0**7, "closed": True}

_CONSTRAINTS: dict[str, Any] = {
    "activations": {"dtype": "int8", "range": (-128, 127)},
    "weights": {"dtype": "int8", "range": WEIGHTS_RANGE, "zero_point": 0, "axis": "output"},
    "smallest_scale": SMALLEST_SCALE,
    "ratios": {
        "Conv": _PRODUCT,
        "ConvTranspose": _PRODUCT,
        "MatMul": _PRODUCT,
        "Gemm": _PRODUCT,
        "Add": _SUM,
        "Sub": _SUM,
        "Mul": {"what": "input * input / output", "low": 2.0**-16, "high": 2.0**8},
        "LeakyRelu": _CONVERSION,
        "QuantizeLinear": _CONVERSION,
    },
    "same_quantization": (
        "Clip",
        "Concat",
        "DepthToSpace",
        "Flatten",
        "Identity",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "Resize",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ),
    "fixed_outputs": {"Softmax": {"dtype": "uint8", "scale": 2.0**-8, "zero_point": 0}},
    "dynamic": {"operators": ("MatMul", "Gemm"), "most_channels": MOST_CHANNELS},
}


def constraints() -> Mapping[str, Any]:
    """Give the limits; see `XnnCpuBackend.quantization_constraints`. The caller owns the copy."""
    return copy.deepcopy(_CONSTRAINTS)
