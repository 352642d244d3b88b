"""Searches factors for all regions of a model, until none lowers the estimated noise any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.noise import BestFactors, ReaderNoise, search_factors
from narrowpass_int8_sym.channels.observe import SplitStatistics
from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.rewrite import scale_constants

Array = np.ndarray[Any, Any]
StatisticsOf = Callable[[Region, Array], Mapping[ir.Value, SplitStatistics]]
"""Returns the channel statistics of the values that the sinks of a region read, after their
division by the cumulative factors."""

_SWEEPS = 20


@dataclass(frozen=True)
class Outcome:
    """The result of the search for a region.

    Attributes:
        region: the region.
        factors: the cumulative divisors of its values; float64 [C]; ones where they were not
            divided.
        before: estimated noise / signal of the weighted nodes that it feeds.
        after: the same with the factors.
    """

    region: Region
    factors: Array
    before: float
    after: float

    @property
    def changed(self) -> bool:
        """Whether anything was divided."""
        return bool(np.any(self.factors != 1))


def equalize_regions(
    model: ir.Model, regions: Sequence[Region], statistics_of: StatisticsOf, least_gain: float
) -> list[Outcome]:
    """Divide the values of each region by the factors with the least estimated noise.

    Scaling a constant for one region changes the noise of its neighbours, so that affected regions
    are searched again, until none gains `least_gain`.

    Args:
        model: changed; its tensors are replaced, never written to.
        regions: of the model.
        statistics_of: called for each region when it is searched.
        least_gain: factors that lower the noise by a smaller share are not worth the change.

    Returns:
        The result of each region, in order.
    """
    factors = [np.ones(region.channels) for region in regions]
    firsts: list[BestFactors | None] = [None] * len(regions)
    lasts = [0.0] * len(regions)
    stale = set(range(len(regions)))
    for _ in range(_SWEEPS):
        waiting, stale = sorted(stale), set()
        for number in waiting:
            region = regions[number]
            known = statistics_of(region, factors[number])
            readings = [
                ReaderNoise.of(sink, known[channel_axis.value])
                for sink, channel_axis in region.sinks
            ]
            choice = search_factors(readings, least_gain)
            firsts[number] = firsts[number] or choice
            lasts[number] = choice.before
            if np.all(choice.factors == 1) or not scale_constants(model, region, choice.factors):
                continue
            factors[number] = factors[number] * choice.factors
            lasts[number] = choice.after
            stale |= _touched(regions, region)
        if not stale:
            break
    return [
        Outcome(region, divided, first.before if first else 0.0, last)
        for region, divided, first, last in zip(regions, factors, firsts, lasts, strict=True)
    ]


def _touched(regions: Sequence[Region], changed: Region) -> set[int]:
    """Return the regions that have a node in common with one that was changed."""
    nodes = {operand.node for operand in _operands(changed)}
    return {
        number
        for number, region in enumerate(regions)
        if any(operand.node in nodes for operand in _operands(region))
    }


def _operands(region: Region) -> list[ChannelConstant]:
    return [*region.sources, *(sink for sink, _ in region.sinks)]
