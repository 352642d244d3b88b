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
from narrowpass_int8_sym.channels.insertion import insert_row, remove_row
from narrowpass_int8_sym.channels.magnitudes import from_data
from narrowpass_int8_sym.channels.regions import Region, find_regions
from narrowpass_int8_sym.channels.search import Look, Outcome, divide_best
from narrowpass_int8_sym.equalize import GAIN_BY_DATA, decibels, decision

if TYPE_CHECKING:
    from narrowpass import Backend, Samples
    from narrowpass_int8_sym.weighted_nodes import WeightedNode

GAIN_BY_ROW = 0.2
"""The share of the noise that a multiplication of its own must gain: about 1 dB. Less would not
be worth a node."""

GAIN_BY_FLOAT = 0.5
"""The share of the noise that must be gained where what makes the value has to be computed in float
for that, and would be a table or a sum of bytes otherwise: about 3 dB."""

_ROW_PRODUCTS = frozenset({"Gemm", "MatMul", "Mul"})


@dataclass(frozen=True)
class Smoothed:
    """What was smoothed.

    Attributes:
        decisions: what is to be said of each value that was divided.
        wide: values that must be made in float for that, by name, and why.
    """

    decisions: list[Decision]
    wide: Mapping[str, str]


def smooth(
    model: ir.Model,
    floats: Mapping[ir.Value, Sequence[WeightedNode]],
    narrow: Mapping[ir.Value, Sequence[WeightedNode]],
    samples: Samples,
    target: Backend | None,
    limit: int,
) -> Smoothed:
    """Divide channels of what MatMul and Gemm read, and multiply the rows of their weights.

    What makes the value takes the factors where that is possible. Elsewhere one multiplication by
    a row is put before all products that read the value, if it is float there: it is read and
    written once, where the products read it for each of their columns.

    A value that an int8 operator would make is taken out of int8 for that only where it gains more:
    of a GELU that is a table of bytes, channels cannot be told apart.

    Args:
        model: in float32; changed.
        floats: products that will be quantized, by the value that they read, which will be float.
        narrow: the same, by values that would be int8, and need not be.
        samples: feeds for the model.
        target: what runs it; see `observe_channels`.
        limit: how many samples are looked at, at most.

    Raises:
        DataError: a value is infinite or NaN on the data.
    """
    found, _ = find_regions(model)
    # Samples show rows of all kinds, but few of what a convolution looks for: a channel that
    # is seldom large would lose its range. The pass `equalize` takes these too, when asked.
    regions = [region for region in found if region.feeds(_ROW_PRODUCTS)]
    taken = {place.value for each in found for place in each.places}
    rows, others = _inserted(model, floats, taken), _inserted(model, narrow, taken)
    look = from_data(model, [*regions, *rows, *others], samples, target, limit)
    folded = divide_best(model, regions, look, GAIN_BY_DATA)
    # One sample has no other half to judge by, and a node is not put in on trust.
    multiplied, floated = (
        divide_best(model, [each for each in given if _has_halves(look, each)], look, gain)
        for given, gain in ((rows, GAIN_BY_ROW), (others, GAIN_BY_FLOAT))
    )
    changed = [outcome for outcome in (*folded, *multiplied, *floated) if outcome.changed]
    kept = {outcome.region for outcome in changed}
    for region in (*rows, *others):
        if region not in kept:
            remove_row(model, region)
    wide = {_multiplied(each.region): _why(each) for each in floated if each.changed}
    return Smoothed([decision(outcome, "smooth") for outcome in changed], wide)


def _multiplied(region: Region) -> str:
    """Name what the row of a region multiplies."""
    (operand,) = region.sources
    value = operand.node.inputs[0]
    return "" if value is None else value.name or ""


def _why(outcome: Outcome) -> str:
    before, after = decibels(outcome.before), decibels(outcome.after)
    return (
        f"channels of its result differ too much for bytes: multiplied by a row in float, "
        f"{after:.1f} dB instead of {before:.1f} are estimated of what reads it"
    )


def _has_halves(look: Look, region: Region) -> bool:
    found = look(region, np.ones(region.channels))
    return all(len(seen.halves) > 1 for seen in found.values())


def _inserted(
    model: ir.Model, floats: Mapping[ir.Value, Sequence[WeightedNode]], taken: Collection[ir.Value]
) -> list[Region]:
    """Put a row of ones before the products of each value that has no region."""
    regions = []
    for value, weighted_nodes in floats.items():
        if value in taken or not all(weighted.is_matrix for weighted in weighted_nodes):
            continue
        region = insert_row(model, value, [weighted.node for weighted in weighted_nodes])
        if region is not None:
            regions.append(region)
    return regions
