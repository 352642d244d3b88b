"""Statistics of the channels of a region's values: from data, or estimated from weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.observe import (
    ChannelStatistics,
    SplitStatistics,
    observe_channels,
)
from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.search import StatisticsOf

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

_DEVIATIONS = 4.0
"""The largest magnitude of a channel, in standard deviations, where there is no data."""


def statistics_from_data(
    model: ir.Model,
    regions: Sequence[Region],
    samples: Samples,
    target: Backend | None,
    limit: int | None = None,
) -> StatisticsOf:
    """Return statistics of the channels on samples; see `observe_channels`."""
    channel_axes = [channel_axis for region in regions for _, channel_axis in region.sinks]
    found = observe_channels(model, channel_axes, samples, target, limit)

    def statistics_of(region: Region, factors: Array) -> Mapping[ir.Value, SplitStatistics]:
        return {
            channel_axis.value: found[channel_axis.value.name or ""].divided(factors)
            for _, channel_axis in region.sinks
        }

    return statistics_of


def statistics_from_weights(region: Region, factors: Array) -> Mapping[ir.Value, SplitStatistics]:
    """Estimate the largest magnitude of a channel as that of the weights that compute it.

    Where only normalizations produce the value, it is estimated as |scale| + |bias|.
    """
    weights = [operand for operand in region.sources if len(operand.dims) > 1]
    found = [_largest(operand) for operand in weights or region.sources]
    largest = np.max(found, axis=0) if weights else np.sum(found, axis=0)
    square = (largest / _DEVIATIONS) ** 2
    both = ChannelStatistics(1, -largest, largest, 0 * largest, square)
    positive = ChannelStatistics(1, 0 * largest, largest, largest / _DEVIATIONS, square)
    return {
        channel_axis.value: SplitStatistics(
            (positive if _is_positive(channel_axis.value) else both,)
        )
        for _, channel_axis in region.sinks
    }


def _largest(operand: ChannelConstant) -> Array:
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
