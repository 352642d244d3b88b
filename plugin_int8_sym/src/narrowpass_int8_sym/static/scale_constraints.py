"""Scales that keep limits of ratios, none of them larger than the limits ask.

A scale may only be raised: a smaller one would cut off what the data has. Each limit of a ratio
says that one scale must be at least a product of others, which grows with them: so there is a
least solution, and going round and raising what must be raised comes to it. In logarithms the
limits are differences, and the rounds those of a search for longest paths: where it has not ended
after as many rounds as there are scales, some limits ask for more of each other without end.

The scales of a weight are raised where a ratio is too small, channel by channel: that costs only
channels whose results round to zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.runtime.quantization import (
    INPUTS_TO_OUTPUT,
    WEIGHT_TO_OUTPUT,
    ScaleBound,
    Violation,
)

Array = np.ndarray[Any, Any]
Key = Any
"""What stands for a scale; hashable."""

MARGIN = 2.0**-20
"""How far within a limit scales are put, relative to it: they, and products of them, are rounded to
float32 before they are compared."""

_LARGEST = 2.0**100
"""No scale of a usable model is above; products of three of them are float64 numbers."""


@dataclass(frozen=True)
class _Required:
    """A scale must be at least so large, because of another."""

    key: Key
    least: float
    source: Key


@dataclass(frozen=True, eq=False)
class Relation:
    """A quantized operator whose scales depend on each other.

    Attributes:
        bound: where the ratio of its scales must lie; None where that does not matter.
        inputs: which scales its operands have.
        output: which its result has; None for a float result.
        weights: the least scales of its weight, float64 [] or [C]; None where it has none.
        least_products: what the scale of the operand times that of the weight must be at least, for
            the bias to fit; as `weights`.
        slope: a part of the operand is multiplied by it.
    """

    bound: ScaleBound | None
    inputs: tuple[Key, ...]
    output: Key | None
    weights: Array | None = None
    min_weighted_nodes: Array | None = None
    slope: float = 1.0

    def channels(self, scales: Mapping[Key, float], margin: float = MARGIN) -> Array | None:
        """Return the scales of the weight that fit the others; float64 [] or [C]."""
        if self.weights is None:
            return None
        found = self.weights
        operand = scales[self.inputs[0]]
        if self.min_weighted_nodes is not None:
            found = np.maximum(found, self.min_weighted_nodes / operand)
        if (
            self.bound is not None
            and self.bound.ratio == WEIGHT_TO_OUTPUT
            and self.output is not None
        ):
            least = self.bound.low * (1 + margin) * scales[self.output] / operand
            found = np.maximum(found, least)
        return found

    def asked(self, scales: Mapping[Key, float], margin: float) -> list[_Required]:
        """Return which scales must be at least how large, as the others are."""
        if self.bound is None or self.output is None:
            return []
        high, low = self.bound.high * (1 - margin), self.bound.low * (1 + margin)
        output, first = scales[self.output], self.inputs[0]
        if self.bound.ratio == WEIGHT_TO_OUTPUT:
            weights = self.channels(scales, margin)
            largest = 1.0 if weights is None else float(np.max(weights))
            return [_Required(self.output, scales[first] * largest / high, first)]
        if self.bound.ratio == INPUTS_TO_OUTPUT:
            together = math.prod(scales[key] for key in self.inputs)
            return [
                _Required(self.output, together / high, first),
                _Required(first, low * output / together * scales[first], self.output),
            ]
        found: list[_Required] = []
        for part in {1.0, abs(self.slope)} - {0.0}:
            for key in self.inputs:
                found.append(_Required(self.output, scales[key] * part / high, key))
                found.append(_Required(key, low * output / part, self.output))
        return found

    def violation(self, scales: Mapping[Key, float]) -> Violation | None:
        """Return how the bound is broken; None where it is kept."""
        if self.bound is None or self.output is None:
            return None
        inputs = [scales[key] for key in self.inputs]
        ratios = [*self.bound.ratios(inputs, self.weights, scales[self.output])]
        parts = [abs(self.slope) * ratio for ratio in ratios if self.slope != 0]
        return self.bound.violation([*ratios, *parts])


@dataclass(frozen=True)
class Solution:
    """Scales that keep all limits, but for those of some relations.

    Attributes:
        scales: of activations.
        refused: relations whose limits cannot be kept, with what they would be without any raise.
    """

    scales: Mapping[Key, float]
    refused: Mapping[Relation, Violation]


def solve(
    least: Mapping[Key, float],
    fixed: Collection[Key],
    relations: Sequence[Relation],
    margin: float = MARGIN,
) -> Solution:
    """Raise scales as far as limits ask.

    Args:
        least: the least scale of each.
        fixed: those that cannot be raised.
        relations: which limits there are.
        margin: how far within limits scales are put, relative to them.
    """
    refused: dict[Relation, Violation] = {}
    while True:
        kept = [relation for relation in relations if relation not in refused]
        scales, culprit = _increased(least, fixed, kept, margin)
        if culprit is None:
            return Solution(scales, refused)
        refused[culprit] = (
            culprit.violation(least) or culprit.violation(scales) or _endless(culprit)
        )


def _increased(
    least: Mapping[Key, float],
    fixed: Collection[Key],
    relations: Sequence[Relation],
    margin: float,
) -> tuple[dict[Key, float], Relation | None]:
    """Go round; return the scales, and a relation whose limit cannot be kept."""
    scales = dict(least)
    causes: dict[Key, tuple[Relation, Key]] = {}
    raised: Key | None = None
    for _ in range(2 * len(scales) + 2):
        raised = None
        for relation in relations:
            for asked in relation.asked(scales, margin):
                if asked.least <= scales[asked.key]:
                    continue
                if asked.key in fixed:
                    return scales, relation
                raised = asked.key
                causes[raised] = relation, asked.source
                scales[raised] = asked.least
                if asked.least > _LARGEST:
                    return scales, _cause(raised, causes, least)
        if raised is None:
            return scales, None
    return scales, None if raised is None else _cause(raised, causes, least)


def _cause(
    raised: Key, causes: Mapping[Key, tuple[Relation, Key]], least: Mapping[Key, float]
) -> Relation:
    """Go back from a scale that was raised to the relations that ask without end."""
    trail: list[Relation] = []
    seen: dict[Key, int] = {}
    while raised not in seen and raised in causes:
        seen[raised] = len(trail)
        relation, raised = causes[raised]
        trail.append(relation)
    circle = trail[seen.get(raised, len(trail) - 1) :]
    return next((each for each in circle if each.violation(least)), circle[-1])


def _endless(relation: Relation) -> Violation:
    bound = relation.bound
    if bound is None:
        raise ValueError("a relation without a bound asks for nothing")
    return Violation(bound.ratio, math.inf, bound.high)
