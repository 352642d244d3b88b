"""Warnings of values and weights that the scale policy ``floor`` rounds mostly to zero."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.calibration import Range
from narrowpass_int8_sym.scales import LEAST_SCALE
from narrowpass_int8_sym.weights import Array

FEWEST_LEVELS = 16
"""The fewest quantization levels of a range without a warning: about 20 dB of SQNR."""

_REMEDY = "scale-policy=solve has scales as small as the ranges allow"


def warn_of_values(
    values: Iterable[ir.Value], ranges: Mapping[str, Range], log: logging.Logger
) -> None:
    """Warn of each value whose clipping range is only a few steps of the least scale.

    Args:
        values: that are quantized.
        ranges: of those that are computed, by name.
        log: of the warnings.
    """
    for value in values:
        found = ranges.get(value.name or "")
        if found is None or not 0 < (width := found.high - found.low) < FEWEST_LEVELS * LEAST_SCALE:
            continue
        lost = max(-found.low, found.high) <= LEAST_SCALE / 2
        log.warning(
            "int8-sym: scale-policy=floor %s value %r: its range is %.4g to %.4g, and a step is "
            "2⁻¹² (%.4g), so that %.3g of 255 steps are left; %s",
            "rounds to zero all of" if lost else "is too coarse for",
            value.name,
            found.low,
            found.high,
            LEAST_SCALE,
            width / LEAST_SCALE,
            _REMEDY,
        )


def warn_of_weights(weights: Mapping[str, Array], log: logging.Logger) -> None:
    """Warn, in one line, of weights with channels whose elements all round to zero.

    Args:
        weights: the largest magnitudes by the name of the weight: [] or, by channel, [C].
        log: of the warning.
    """
    lost = {
        name: np.ravel(found)[(np.ravel(found) > 0) & (np.ravel(found) < LEAST_SCALE / 2)]
        for name, found in weights.items()
    }
    lost = {name: found for name, found in lost.items() if found.size}
    if not lost:
        return
    first, magnitudes = next(iter(lost.items()))
    log.warning(
        "int8-sym: scale-policy=floor rounds to zero %d channels of %d weights, whose elements are "
        "all below half a step of 2⁻¹² (%.4g): first of %r, with magnitudes up to %.4g; %s",
        sum(found.size for found in lost.values()),
        len(lost),
        LEAST_SCALE,
        first,
        magnitudes.max(),
        _REMEDY,
    )
