"""Weights that compensate what narrow layers before theirs have lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_int4.methods.curvature import inverse_of_upper

Array = np.ndarray[Any, Any]

DAMPING = 0.2
"""The share of the mean of the Hessian's diagonal that holds weights near those of the model: with
few samples, the nearest outputs on these are not the nearest on others."""


def compensation(hessian: Array, cross: Array) -> Array:
    """Return the matrix float32 [K, K] that turns rows of weights into those to be quantized.

    The float model computes other inputs than the narrow layers before this one do. Turned rows are
    those whose outputs on the narrow inputs are nearest to the float ones, by linear least squares
    with a ridge towards the rows themselves: Y. Li et al., "GPTAQ: Efficient Finetuning-Free
    Quantization for Asymmetric Calibration", arXiv:2504.02692, in closed form.

    Args:
        hessian: float [K, K], ``X · Xᵀ`` of the narrow inputs X.
        cross: float [K, K], ``X · Fᵀ`` with the inputs F of the float model.
    """
    damping = DAMPING * (float(np.diag(hessian).mean()) or 1.0)
    ridge = damping * np.eye(len(hessian), dtype=hessian.dtype)
    # L · Lᵀ = H + ridge, and V = L⁻ᵀ: the inverse is V · Vᵀ, nearly all of it matmuls, which run at
    # several times the rate of LAPACK's triangular solves.
    upper = np.ascontiguousarray(np.linalg.cholesky(hessian + ridge).T)
    inverse = inverse_of_upper(upper)
    found = (cross + ridge).T @ (inverse @ inverse.T)
    return np.ascontiguousarray(found, np.float32)
