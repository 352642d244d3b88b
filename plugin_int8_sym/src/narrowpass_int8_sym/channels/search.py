"""Searches per-channel factors that minimize the int8 rounding noise of matmuls and convolutions.

The noise model: rounding to steps of ``d`` adds noise of variance ``d² / 12`` to each element,
independent of all else, but at most the square of the element. A matmul of ``x`` with a per-tensor
scale and ``w`` with a scale for each output channel then has in such a channel the noise

    Σ w² min(dx² / 12, x²)  +  Σ x² min(dw² / 12, w²)

and the signal ``Σ w² x²``, where channels of ``x`` are assumed to be uncorrelated. Dividing
channels of ``x`` by factors, and multiplying those of ``w``, leaves the signal as it is and changes
both parts of the noise: steps of ``x`` become finer, those of ``w`` coarser.

The noise of a matmul is the geometric mean over its output channels of noise / signal, which is the
mean in decibels: later weights may amplify any channel. Regions are searched in turns, until no
change lowers their noise any more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelConstant
from narrowpass_int8_sym.channels.regions import Region
from narrowpass_int8_sym.channels.rewrite import scale_constants
from narrowpass_int8_sym.channels.statistics import ChannelStatistics, SplitStatistics, StatisticsOf

Array = np.ndarray[Any, Any]

EXPONENTS = tuple(tenth / 10 for tenth in range(11))
"""Candidate exponents: the share of the range differences that moves out of the values; 1 minus it
moves out of the weights (the alpha of SmoothQuant)."""

STRENGTHS = (0.25, 0.5, 0.75, 1.0)
"""Candidate exponents of the whole factor: 1 equalizes fully."""

ROWS = 128
"""The largest number of output channels of a group that are evaluated: the mean over more changes
little."""

_LARGEST_FACTOR = 1024.0
_LEVELS = 255
_WEIGHT_LEVELS = 127


@dataclass(frozen=True)
class ReaderNoise:
    """The noise model of a weighted node that reads a value.

    Weights of each output channel are relative to the largest of them, which changes no ratio, so
    that float32 holds them and their squares.

    Attributes:
        seen: statistics of the channels of the value.
        peaks: the square of the largest magnitude of the weights for each channel of the result,
            and of the value, group by group; [G, R / G, C / G] in float32, with `ROWS` of the
            results at most. Zeros for what is not rounded itself.
        energy: the sum of the squares of these weights; the same shape. Where there is but one
            weight, the same array.
        taps: how many weights of a row belong to one channel.
        magnitudes: the largest root of the energy of all results, for each channel of the value;
            [C].
        scratch: an array of the same shape as `energy`, for what is computed for some factors: a
            fresh one for each takes longer than what is computed.
    """

    seen: SplitStatistics
    peaks: Array
    energy: Array
    taps: int
    magnitudes: Array
    scratch: Array

    @classmethod
    def of(cls, sink: ChannelConstant, seen: SplitStatistics) -> ReaderNoise:
        """Return the noise model of a constant that multiplies channels."""
        weight = np.abs(sink.read().astype(np.float64))
        kind = sink.node.op_type
        if kind == "Mul":
            vector = weight.reshape(-1)
            ones = (vector.reshape(-1, 1, 1) > 0).astype(np.float32)
            return cls(seen, np.zeros_like(ones), ones, 1, vector, np.empty_like(ones))
        if kind in ("MatMul", "Gemm"):
            groups, grouped = 1, (weight if sink.axis == 1 else weight.T)[None, :, :, None]
        elif kind == "ConvTranspose":
            groups = sink.node.attributes.get_int("group", 1)
            grouped = weight.reshape(groups, -1, weight.shape[1], _rest(weight)).swapaxes(1, 2)
        else:
            groups = sink.node.attributes.get_int("group", 1)
            grouped = weight.reshape(groups, -1, weight.shape[1], _rest(weight))
        # [groups, rows, channels, taps]
        energy = np.einsum("grct,grct->grc", grouped, grouped)
        magnitudes = np.sqrt(energy.max(axis=1)).reshape(-1)
        some = slice(None, None, -(-energy.shape[1] // ROWS))
        chosen = energy[:, some]
        unit = chosen.max(axis=2, keepdims=True)
        unit[unit == 0] = 1
        relative = (chosen / unit).astype(np.float32)
        taps = grouped.shape[3]
        peaks = relative
        if taps > 1:
            peaks = (grouped[:, some].max(axis=3) ** 2 / unit).astype(np.float32)
        return cls(seen, peaks, relative, taps, magnitudes, np.empty_like(relative))

    def noise(self, given: ChannelStatistics, factors: Array) -> float:
        """Return noise / signal if the channels of the value are divided by factors."""
        groups, _, channels = self.energy.shape
        largest = given.square.max(initial=0)
        if largest == 0:
            return 0.0
        shares = factors**2
        width = (given.high / factors).max(initial=0) - (given.low / factors).min(initial=0)
        step = (width / _LEVELS) ** 2 / 12
        rounded = np.minimum(step * shares, given.square) / largest
        squares = given.square / largest
        columns = np.stack([rounded, squares], axis=-1).astype(np.float32)
        lost_and_signal = self.energy @ columns.reshape(groups, channels, 2)
        narrow = shares.astype(np.float32).reshape(groups, 1, channels)
        # min(steps / shares, energy) is min(steps, energy * shares) / shares: nothing is divided
        # for each weight, and where there is one weight, what its step follows from is used again.
        scaled = np.multiply(self.peaks, narrow, out=self.scratch)
        steps = scaled.max(axis=2, keepdims=True)
        steps *= np.float32(self.taps / _WEIGHT_LEVELS**2 / 12)
        if self.peaks is not self.energy:
            np.multiply(self.energy, narrow, out=scaled)
        np.minimum(scaled, steps, out=scaled)
        coarse = (squares / shares).astype(np.float32).reshape(groups, channels, 1)
        lost = lost_and_signal[..., 0] + (scaled @ coarse)[..., 0]
        signal = lost_and_signal[..., 1]
        heard = (signal > 0) & (lost > 0)
        if not heard.any():
            return 0.0
        return float(np.exp(np.log(lost[heard] / signal[heard], dtype=np.float64).mean()))


@dataclass(frozen=True)
class BestFactors:
    """The best factors for the channels of a region.

    Attributes:
        factors: divisors of the values; float64 [C], positive; ones where no others are better.
        before: noise / signal of the weighted nodes without them, summed.
        after: the same with them.
    """

    factors: Array
    before: float
    after: float


def search_factors(readings: Sequence[ReaderNoise], least_gain: float) -> BestFactors:
    """Search the factors with the least noise among ``(a^e / w^(1 - e))^t``.

    ``a`` is the largest magnitude of a channel of the values, ``w`` that of the weights that it
    is multiplied with, ``e`` one of `EXPONENTS` and ``t`` one of `STRENGTHS`; 0.5 and 1 are those
    of cross-layer equalization. Dead channels, where ``a`` or ``w`` is zero, keep the factor 1.

    ``e`` and ``t`` are chosen by two-fold cross-validation: factors from one half of the samples
    are rated by the noise on the other half. Extremes on few samples predict others badly, and
    factors that follow them would enlarge the range of the whole tensor.

    Args:
        readings: of the weighted nodes; at least one.
        least_gain: the share by which the noise must fall, in cross-validation and on all samples.
    """
    weights = np.max([reading.magnitudes for reading in readings], axis=0)
    folds = min(len(reading.seen.halves) for reading in readings)
    fitted = [[reading.seen.halves[fold] for reading in readings] for fold in range(folds)]
    everything = [reading.seen.all for reading in readings]
    ones = np.ones(len(weights))
    before = _total(readings, everything, ones)
    plain = sum(_total(readings, given, ones) for given in fitted)
    best, shape = (1 - least_gain) * plain, None
    for exponent, strength in itertools.product(EXPONENTS, STRENGTHS):
        noise = sum(
            _total(readings, judge, _factors(given, weights, exponent, strength))
            for given, judge in zip(fitted, reversed(fitted), strict=True)
        )
        if noise < best:
            best, shape = noise, (exponent, strength)
    if shape is None:
        return BestFactors(ones, before, before)
    factors = _factors(everything, weights, *shape)
    after = _total(readings, everything, factors)
    if after > (1 - least_gain) * before:
        return BestFactors(ones, before, before)
    return BestFactors(factors, before, after)


def _factors(
    given: Sequence[ChannelStatistics], weights: Array, exponent: float, strength: float
) -> Array:
    """Return factors whose geometric mean is 1, as float32 has them."""
    values = np.max([np.maximum(-each.low, each.high) for each in given], axis=0)
    alive = (values > 0) & (weights > 0)
    logs = np.zeros(len(weights))
    if alive.any():
        logs[alive] = exponent * np.log(values[alive]) - (1 - exponent) * np.log(weights[alive])
        logs[alive] = strength * (logs[alive] - logs[alive].mean())
    factors: Array = np.clip(np.exp(logs), 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
    return factors.astype(np.float32).astype(np.float64)


def _rest(weight: Array) -> int:
    return math.prod(weight.shape[2:])


def _total(
    readings: Sequence[ReaderNoise], given: Sequence[ChannelStatistics], factors: Array
) -> float:
    return sum(r.noise(each, factors) for r, each in zip(readings, given, strict=True))


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
