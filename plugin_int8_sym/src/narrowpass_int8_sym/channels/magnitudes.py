"""What is known of the channels of a region's values: from data, or from weights alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.observe import Channels, ChannelStatistics, observe_channels
from narrowpass_int8_sym.channels.operand import Operand
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.search import Look

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

_DEVIATIONS = 4.0
"""The largest magnitude of a channel, in standard deviations, where there is no data."""


def from_data(
    model: ir.Model,
    regions: Sequence[Region],
    samples: Samples,
    target: Backend | None,
    limit: int | None = None,
) -> Look:
    """Return what channels are on samples; see `observe_channels`."""
    places = [place for region in regions for _, place in region.sinks]
    found = observe_channels(model, places, samples, target, limit)

    def look(region: Region, factors: Array) -> Mapping[ir.Value, ChannelStatistics]:
        return {
            place.value: found[place.value.name or ""].divided(factors) for _, place in region.sinks
        }

    return look


def from_weights(region: Region, factors: Array) -> Mapping[ir.Value, ChannelStatistics]:
    """Take the largest weight that a channel is made with for its largest magnitude.

    Where only normalizations make the value, the sum of factor and addend is taken.
    """
    weights = [operand for operand in region.sources if len(operand.dims) > 1]
    found = [_largest(operand) for operand in weights or region.sources]
    largest = np.max(found, axis=0) if weights else np.sum(found, axis=0)
    square = (largest / _DEVIATIONS) ** 2
    both = Channels(1, -largest, largest, 0 * largest, square)
    positive = Channels(1, 0 * largest, largest, largest / _DEVIATIONS, square)
    return {
        place.value: ChannelStatistics((positive if _is_positive(place.value) else both,))
        for _, place in region.sinks
    }


def _largest(operand: Operand) -> Array:
    """Return the largest magnitude in each channel of a constant."""
    array = np.abs(operand.read().astype(np.float64))
    if operand.groups > 1:
        grouped = array.reshape(operand.groups, -1, array.shape[1], array[0, 0].size)
        return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
    rows = np.moveaxis(array, operand.axis, 0).reshape(operand.channels, -1)
    return np.asarray(rows.max(axis=1))


def _is_positive(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in ("Relu", "Clip", "Abs")
