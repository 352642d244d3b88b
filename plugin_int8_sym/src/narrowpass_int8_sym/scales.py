"""Scales and zero points: from ranges of activations and magnitudes of weights.

A real number is ``scale · (integer - zero point)``. Weights have the zero point 0 and integers in
[-127, 127]; activations are signed, affine in [-128, 127] or symmetric.
"""

from __future__ import annotations

import numpy as np

from narrowpass.runtime.quantization import SMALLEST_SCALE, Parameters

LEAST_SCALE = 2.0**-12
"""The least scale of the policy ``floor``: two of them multiplied, divided by the largest scale of
256, are 2⁻³², the least requantization scale that XNNPACK supports. PyTorch's symmetric presets for
XNNPACK have the same."""

LARGEST_WEIGHT = 127


def of_range(low: float, high: float, *, symmetric: bool, least: float = 0.0) -> Parameters:
    """Return the scale and zero point of a clipping range; 0 is exact.

    Args:
        low: the least value; taken as 0 where it is above that.
        high: the largest; taken as 0 where it is below that.
        symmetric: whether the zero point is to be 0.
        least: the least scale.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        scale = _scale(max(-low, high) / LARGEST_WEIGHT, least)
        return Parameters(scale, 0)
    scale = _scale((high - low) / 255, least)
    zero_point = round(-128 - low / scale)
    return Parameters(scale, min(127, max(-128, zero_point)))


def of_magnitudes(largest: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the scales of weights from their largest magnitudes, one or one a channel.

    A channel of zeros gets the scale 1.

    Args:
        largest: float32 [] or [C], finite, at least 0.
        least: the least scale.

    Returns:
        float32 of the same shape, positive.
    """
    scales = np.asarray(largest, np.float64) / LARGEST_WEIGHT
    # Rounded up where float32 has it not exactly: the largest weight must not become 128.
    narrow = scales.astype(np.float32)
    narrow = np.where(narrow < scales, np.nextafter(narrow, np.float32(np.inf)), narrow)
    floor = np.float32(max(least, SMALLEST_SCALE))
    return np.where(largest == 0, np.float32(1), np.maximum(narrow, floor)).astype(np.float32)


def _scale(exact: float, least: float) -> float:
    if exact == 0:
        return max(1.0, least)
    narrow = np.float32(exact)
    if float(narrow) < exact:
        narrow = np.nextafter(narrow, np.float32(np.inf))
    return max(float(narrow), least, SMALLEST_SCALE)
