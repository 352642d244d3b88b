"""Smoothing: channels of the operands of matmuls are scaled to similar magnitudes.

After Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", ICML 2023; the factors of each region are searched by the noise of its results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass_int8_sym.channels.regions import Region, find_regions
from narrowpass_int8_sym.channels.rewrite import insert_mul, remove_mul
from narrowpass_int8_sym.channels.search import Outcome, equalize_regions
from narrowpass_int8_sym.channels.statistics import StatisticsOf, statistics_from_data
from narrowpass_int8_sym.equalize import GAIN_BY_DATA, decibels, decision

if TYPE_CHECKING:
    from narrowpass import Backend, Samples
    from narrowpass_int8_sym.weighted_nodes import WeightedNode

GAIN_BY_ROW = 0.2
"""The share by which an inserted Mul must lower the noise: about 1 dB. Less is not worth a node."""

GAIN_BY_FLOAT = 0.5
"""The share by which the noise must fall where the producer, which could be int8, has to stay float
for it: about 3 dB."""

_SMOOTHED_OPERATORS = frozenset({"Gemm", "MatMul", "Mul"})


@dataclass(frozen=True)
class Smoothed:
    """The result of smoothing.

    Attributes:
        decisions: on each value that was divided.
        float_values: values whose producers must stay float for it, by name, and why.
    """

    decisions: list[Decision]
    float_values: Mapping[str, str]


def smooth(
    model: ir.Model,
    floats: Mapping[ir.Value, Sequence[WeightedNode]],
    narrow: Mapping[ir.Value, Sequence[WeightedNode]],
    samples: Samples,
    target: Backend | None,
    limit: int,
) -> Smoothed:
    """Divide channels of the operands of MatMul and Gemm, and multiply the rows of their weights.

    The factors are folded into the constants of the producers where that is possible. Elsewhere one
    Mul is inserted before all matmuls that read a float value. It reads and writes the value once,
    while the matmuls read it for each tile of their columns.

    The producer of an operand that would be int8 is kept float for a Mul only where that gains
    more: an int8 GELU is a lookup table, whose output has one scale for all channels.

    Args:
        model: in float32; changed.
        floats: the matmuls that will be quantized, by their operand, if that will be float.
        narrow: the same, by operands that would be int8, but can stay float.
        samples: feeds for the model.
        target: what runs it; see `observe_channels`.
        limit: the largest number of samples.

    Raises:
        DataError: a value is infinite or NaN on the data.
    """
    found, _ = find_regions(model)
    # Samples cover the rows of a matmul well, but not all patterns that a convolution detects: a
    # channel that is seldom large would be clipped. The pass `equalize` scales those, too.
    regions = [region for region in found if region.feeds(_SMOOTHED_OPERATORS)]
    taken = {channel_axis.value for each in found for channel_axis in each.channel_axes}
    rows, others = _inserted(model, floats, taken), _inserted(model, narrow, taken)
    statistics_of = statistics_from_data(model, [*regions, *rows, *others], samples, target, limit)
    folded = equalize_regions(model, regions, statistics_of, GAIN_BY_DATA)
    # One sample allows no cross-validation, without which no node is inserted.
    multiplied, floated = (
        equalize_regions(
            model, [each for each in given if _has_halves(statistics_of, each)], statistics_of, gain
        )
        for given, gain in ((rows, GAIN_BY_ROW), (others, GAIN_BY_FLOAT))
    )
    changed = [outcome for outcome in (*folded, *multiplied, *floated) if outcome.changed]
    kept = {outcome.region for outcome in changed}
    for region in (*rows, *others):
        if region not in kept:
            remove_mul(model, region)
    wide = {_multiplied(each.region): _why(each) for each in floated if each.changed}
    return Smoothed([decision(outcome, "smooth") for outcome in changed], wide)


def _multiplied(region: Region) -> str:
    """Return the name of the value that the Mul of a region multiplies."""
    (operand,) = region.sources
    value = operand.node.inputs[0]
    return "" if value is None else value.name or ""


def _why(outcome: Outcome) -> str:
    before, after = decibels(outcome.before), decibels(outcome.after)
    return (
        f"channels of its result differ too much for int8: with a float Mul for smoothing, the "
        f"estimated SQNR of its consumers is {after:.1f} dB instead of {before:.1f}"
    )


def _has_halves(statistics_of: StatisticsOf, region: Region) -> bool:
    found = statistics_of(region, np.ones(region.channels))
    return all(len(seen.halves) > 1 for seen in found.values())


def _inserted(
    model: ir.Model, floats: Mapping[ir.Value, Sequence[WeightedNode]], taken: Collection[ir.Value]
) -> list[Region]:
    """Insert a Mul by ones before the matmuls of each operand that has no region."""
    regions = []
    for value, weighted_nodes in floats.items():
        if value in taken or not all(weighted.is_matrix for weighted in weighted_nodes):
            continue
        region = insert_mul(model, value, [weighted.node for weighted in weighted_nodes])
        if region is not None:
            regions.append(region)
    return regions
