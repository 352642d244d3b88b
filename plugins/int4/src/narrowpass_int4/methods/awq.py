"""AWQ: channels that meet large activations are scaled up before they are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import choice, output_power, to_blocks

Array = np.ndarray[Any, Any]

STEPS = 20
"""Exponents between 0 and 1 that are tried."""


def search_factors(
    weights: Sequence[Array], hessian: Array, magnitude: Array, grid: Grid, block: int
) -> Array | None:
    """Return factors for the channels of a value with which its readers lose least: AWQ.

    J. Lin, J. Tang, H. Tang, S. Yang, W.-M. Chen, W.-C. Wang, G. Xiao, X. Dang, C. Gan and S. Han,
    "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024,
    arXiv:2306.00978. The weights of channel i are multiplied by ``s_i = magnitude_i ** a``, and
    what they are multiplied with is divided by it. The exponent a is searched from 0 to 1 by the
    squared error of the outputs on data.

    Args:
        weights: float32 [N, K] of each reader.
        hessian: float [K, K] of the value, ``X · Xᵀ``.
        magnitude: float [K], the mean of ``|X|`` of each channel.
        grid: the integers.
        block: elements that share a scale.

    Returns:
        float32 [K], positive; None where no exponent above 0 is better than 0.
    """
    mean = np.maximum(np.asarray(magnitude, np.float64), 1e-8)
    best, chosen = lost_outputs(weights, hessian, grid, block, None), None
    for step in range(1, STEPS):
        factors = mean ** (step / STEPS)
        # Only what is between channels counts; so the largest and the least are far from limits.
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        lost = lost_outputs(weights, hessian, grid, block, factors)
        if lost < best:
            best, chosen = lost, factors
    return chosen


def lost_outputs(
    weights: Sequence[Array], hessian: Array, grid: Grid, block: int, factors: Array | None
) -> float:
    """Return the squared error of the outputs of layers whose channels have factors."""
    choose = choice("rtn", grid, block)
    total = 0.0
    for rows in weights:
        scaled = rows if factors is None else rows * factors
        integers, scale, zero = choose(scaled, 0)
        values = grid.dequantize(to_blocks(integers, block), scale, zero)
        values = values.reshape(len(rows), -1)[:, : rows.shape[1]]
        if factors is not None:
            values = values / factors
        total += output_power(values - rows, hessian)
    return total
