"""Factors for all regions of a model, each tried until none lowers the noise any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.noise import Choice, Reading, choose
from narrowpass_int8_sym.channels.observe import ChannelStatistics
from narrowpass_int8_sym.channels.operand import Operand
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.rewrite import divide

Array = np.ndarray[Any, Any]
Look = Callable[[Region, Array], Mapping[ir.Value, ChannelStatistics]]
"""Tells what the channels of the values are that the sinks of a region read, which were divided by
these factors in all since the beginning."""

_SWEEPS = 20


@dataclass(frozen=True)
class Outcome:
    """What became of a region.

    Attributes:
        region: the region.
        factors: that its values were divided by in all; float64 [C]; ones where they were not.
        before: the estimated noise of the products that it feeds, as a share of the signal.
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


def divide_best(
    model: ir.Model, regions: Sequence[Region], look: Look, least_gain: float
) -> list[Outcome]:
    """Divide the values of each region by the factors with the least noise.

    What a constant is multiplied with for one region changes the noise of the next, so that
    regions are gone through again, until none gains `least_gain`.

    Args:
        model: changed, but for its tensors.
        regions: of the model.
        look: asked for each region when its turn comes.
        least_gain: factors that lower the noise by a smaller share are not worth the change.

    Returns:
        What became of each region, in order.
    """
    factors = [np.ones(region.channels) for region in regions]
    firsts: list[Choice | None] = [None] * len(regions)
    lasts = [0.0] * len(regions)
    stale = set(range(len(regions)))
    for _ in range(_SWEEPS):
        waiting, stale = sorted(stale), set()
        for number in waiting:
            region = regions[number]
            known = look(region, factors[number])
            readings = [Reading.of(sink, known[place.value]) for sink, place in region.sinks]
            choice = choose(readings, least_gain)
            firsts[number] = firsts[number] or choice
            lasts[number] = choice.before
            if np.all(choice.factors == 1) or not divide(model, region, choice.factors):
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


def _operands(region: Region) -> list[Operand]:
    return [*region.sources, *(sink for sink, _ in region.sinks)]
