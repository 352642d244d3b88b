"""Results that must have the same bits at each level of instruction sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from narrowpass_testing.random_models import EXACT, Case

LEVELLED = EXACT | {
    "Add",
    "Conv",
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "Mul",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "Sub",
}
"""Operators whose results have the same bits from AVX2 on: reductions of rows are not among them,
nor are functions, whose polynomials depend on the instruction set."""


def is_levelled(case: Case) -> bool:
    """Report whether results have the same bits at all levels from AVX2 on."""
    return {node.op_type for node in case.model.graph.node} <= LEVELLED


def digest(values: Mapping[str, np.ndarray]) -> str:
    """Return a digest of outputs."""
    found = hashlib.sha256()
    for name in sorted(values):
        value = np.asarray(values[name])
        found.update(f"{name} {value.dtype} {value.shape}".encode())
        found.update(value.tobytes())
    return found.hexdigest()[:20]
