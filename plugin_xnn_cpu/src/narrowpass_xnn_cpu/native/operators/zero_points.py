"""Zero points of weights, for kernels of ours that take them away from the accumulators.

With activations a and weights w, of zero points z and v, ``sum((a - z) * (w - v))`` is
``sum((a - z) * w) - v * sum(a - z)``: the second term is one number for each row times one for each
column, so that weights stay bytes.
"""

from __future__ import annotations

import numpy as np

from narrowpass_planning.weights.weight import Array, Quantized
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.quantized import UnfitError

_ORDER = (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
"""The columns of a panel of pairs: np_int8_order."""
_BEHIND = 64
"""Columns that kernels may read behind the last: of the widest tile."""

MOST_TERMS = (2**31 - 1) // (255 * 255)
"""Products of a byte and a weight with a zero point that fit 32 bits together: 33,025."""


def zero_points(matrix: Quantized, outputs: int) -> Array | None:
    """Give the zero point of each output as int32; None where all are 0.

    Raises:
        UnfitError: there are as many as neither one nor the outputs.
    """
    zero = matrix.zero
    if zero is None:
        return None
    if zero.size not in (1, outputs):
        raise UnfitError(f"it has {zero.size} zero points for {outputs} outputs")
    array = zero.array().reshape(-1).astype(np.int32)
    if not array.any():
        return None
    return array if array.size == outputs else np.repeat(array, outputs)


def in_panels(zeros: Array, groups: int, layout: tiled.Layout) -> Array:
    """Give zero points in the order in which panels have their columns: int32 [groups, stride]."""
    each = zeros.reshape(groups, -1)
    count = each.shape[1]
    found = np.zeros((groups, -(-count // _BEHIND) * _BEHIND + _BEHIND), np.int32)
    found[:, :count] = each
    if layout is tiled.PAIRS:
        for first in range(0, count, tiled.COLUMNS):
            if count - first > tiled.COLUMNS // 2:
                panel = found[:, first : first + tiled.COLUMNS]
                found[:, first : first + tiled.COLUMNS] = panel[:, _ORDER]
    return found


def check_terms(terms: int, what: str, zeros: Array | None) -> None:
    """Raise `UnfitError` where accumulators of so many terms may not fit 32 bits."""
    if zeros is None:
        tiled.checked_sums(terms, what)
    elif terms > MOST_TERMS:
        raise UnfitError(f"sums over {terms} {what} with zero points may not fit 32 bits")
