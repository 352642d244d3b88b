"""How much noise products have from rounding to int8, as estimated, and for which factors least.

The model of the noise: what is rounded to steps of ``d`` gets noise of variance ``d² / 12`` in
each element, independent of all else. A product of ``x``, whose scale is one for the tensor, and
``w``, whose scales are one for each channel of the result, then has the noise

    (dx² / 12) Σ w²  +  Σ over channels of the result (dw² / 12) Σ x²

and the signal ``Σ w² x²``, where channels of ``x`` are taken to be uncorrelated. Dividing channels
of ``x`` by factors, and multiplying those of ``w``, leaves the signal as it is and changes both
parts of the noise: steps of ``x`` become finer, those of ``w`` coarser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_int8_sym.channels.observe import Channels
from narrowpass_int8_sym.channels.operand import Operand

Array = np.ndarray[Any, Any]

EXPONENTS = tuple(tenth / 10 for tenth in range(11))
"""How much of the differences between channels goes from the values (1: all of it)."""

_LARGEST_FACTOR = 1024.0
_LEVELS = 255
_WEIGHT_LEVELS = 127


@dataclass(frozen=True)
class Reading:
    """A product that reads a value, as the model of the noise sees it.

    Attributes:
        channels: what the value is.
        largest: the largest magnitude of the weights for each channel of the result, and of the
            value, group by group; [G, R / G, C / G]. Without rows for what is not rounded itself.
        energy: the sum of squares of the weights that each channel is multiplied with; [C].
        taps: how many weights of a row belong to one channel.
    """

    channels: Channels
    largest: Array
    energy: Array
    taps: int

    @classmethod
    def of(cls, sink: Operand, channels: Channels) -> Reading:
        """Read a constant that multiplies channels."""
        weight = np.abs(sink.read().astype(np.float64))
        kind = sink.node.op_type
        if kind == "Mul":
            vector = weight.reshape(-1)
            return cls(channels, np.zeros((1, 0, vector.size)), vector**2, 1)
        if kind in ("MatMul", "Gemm"):
            groups, grouped = 1, (weight if sink.axis == 1 else weight.T)[None, :, :, None]
        elif kind == "ConvTranspose":
            groups = sink.node.attributes.get_int("group", 1)
            grouped = weight.reshape(groups, -1, weight.shape[1], _rest(weight)).swapaxes(1, 2)
        else:
            groups = sink.node.attributes.get_int("group", 1)
            grouped = weight.reshape(groups, -1, weight.shape[1], _rest(weight))
        # [groups, rows, channels, taps]
        energy = np.einsum("grct,grct->gc", grouped, grouped).reshape(-1)
        return cls(channels, grouped.max(axis=3), energy, grouped.shape[3])

    def noise(self, factors: Array) -> float:
        """Give the noise, as a share of the signal, where channels are divided by factors."""
        given = self.channels
        signal = float(given.square @ self.energy)
        if signal == 0:
            return 0.0
        width = (given.high / factors).max(initial=0) - (given.low / factors).min(initial=0)
        rounded = (width / _LEVELS) ** 2 * float(factors**2 @ self.energy)
        groups, _, channels = self.largest.shape
        steps = (self.largest * factors.reshape(groups, 1, channels)).max(axis=2) / _WEIGHT_LEVELS
        squares = (given.square / factors**2).reshape(groups, channels).sum(axis=1)
        rounded += self.taps * float((steps**2).sum(axis=1) @ squares)
        return float(rounded / 12 / signal)


@dataclass(frozen=True)
class Choice:
    """Factors for the channels of a region.

    Attributes:
        factors: what values are divided by; float64 [C], positive.
        exponent: one of `EXPONENTS`.
        before: the noise of the products without them, as a share of the signal.
        after: the noise with them.
    """

    factors: Array
    exponent: float
    before: float
    after: float


def choose(readings: Sequence[Reading]) -> Choice:
    """Find the factors with the least noise, of those that are ``a^e / w^(1 - e)``.

    ``a`` is the largest magnitude of a channel of the values, ``w`` that of the weights that it
    is multiplied with, and ``e`` one of `EXPONENTS`; 0.5 is the rule of cross-layer equalization.
    Dead channels, where one of them is zero, keep the factor 1.
    """
    values = np.max([np.maximum(-r.channels.low, r.channels.high) for r in readings], axis=0)
    weights = np.max([_magnitudes(r) for r in readings], axis=0)
    alive = (values > 0) & (weights > 0)
    ones = np.ones(len(values))
    before = _total(readings, ones)
    best = Choice(ones, 0.0, before, before)
    if not alive.any():
        return best
    for exponent in EXPONENTS:
        logs = np.zeros(len(values))
        logs[alive] = exponent * np.log(values[alive]) - (1 - exponent) * np.log(weights[alive])
        logs[alive] -= logs[alive].mean()
        factors = np.clip(np.exp(logs), 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
        factors = factors.astype(np.float32).astype(np.float64)
        noise = _total(readings, factors)
        if noise < best.after:
            best = Choice(factors, exponent, before, noise)
    return best


def _magnitudes(reading: Reading) -> Array:
    if not reading.largest.shape[1]:
        return np.sqrt(reading.energy)
    return np.asarray(reading.largest.max(axis=1).reshape(-1))


def _rest(weight: Array) -> int:
    return math.prod(weight.shape[2:])


def _total(readings: Sequence[Reading], factors: Array) -> float:
    return sum(reading.noise(factors) for reading in readings)
