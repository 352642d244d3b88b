"""Solves for the smallest scales that keep the limits of a backend on ratios of scales.

A scale may only be increased: a smaller one would clip values. Each limit requires that one scale
is at least a monotonic function of others: so there is a least solution, and increasing violated
scales until none is left reaches it. In logarithms these are difference constraints, and the rounds
are those of Bellman-Ford: if it has not converged after as many rounds as there are scales, some
limits form a cycle that no scales satisfy (R. Bellman, "On a routing problem", 1958).

The scales of a weight are increased where a ratio is too small, for each channel: that costs only
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
"""Identifies a scale; hashable."""

MARGIN = 2.0**-20
"""The relative distance that scales keep from a limit: scales, and scales multiplied with each
other, are rounded to float32 before they are compared."""

_LARGEST = 2.0**100
"""An upper bound on scales of a usable model; three of them multiplied do not overflow float64."""


@dataclass(frozen=True)
class _Required:
    """A lower bound on a scale that follows from another one."""

    key: Key
    least: float
    source: Key


@dataclass(frozen=True, eq=False)
class ScaleConstraint:
    """The constraint of a quantized operator on its scales.

    Attributes:
        bound: the limits of the ratio of its scales; None for no limits.
        inputs: the keys of the scales of its operands.
        output: the key of the scale of its result; None for a float result.
        weights: the least scales of its weight, float64 [] or [C]; None where it has none.
        min_accumulator_scales: the least scale of the operand times that of the weight with which
            the bias fits int32; as `weights`.
        slope: of a LeakyRelu; 1 for other operators.
    """

    bound: ScaleBound | None
    inputs: tuple[Key, ...]
    output: Key | None
    weights: Array | None = None
    min_accumulator_scales: Array | None = None
    slope: float = 1.0

    def channels(self, scales: Mapping[Key, float], margin: float = MARGIN) -> Array | None:
        """Return the least scales of the weight for the other scales; float64 [] or [C]."""
        if self.weights is None:
            return None
        found = self.weights
        operand = scales[self.inputs[0]]
        if self.min_accumulator_scales is not None:
            found = np.maximum(found, self.min_accumulator_scales / operand)
        if (
            self.bound is not None
            and self.bound.ratio == WEIGHT_TO_OUTPUT
            and self.output is not None
        ):
            least = self.bound.low * (1 + margin) * scales[self.output] / operand
            found = np.maximum(found, least)
        return found

    def required(self, scales: Mapping[Key, float], margin: float) -> list[_Required]:
        """Return the lower bounds on its scales that follow from the others."""
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
        """Return the violation of the bound; None where it is kept."""
        if self.bound is None or self.output is None:
            return None
        inputs = [scales[key] for key in self.inputs]
        ratios = [*self.bound.ratios(inputs, self.weights, scales[self.output])]
        parts = [abs(self.slope) * ratio for ratio in ratios if self.slope != 0]
        return self.bound.violation([*ratios, *parts])


@dataclass(frozen=True)
class Solution:
    """Scales that satisfy all constraints that can be satisfied.

    Attributes:
        scales: of activations.
        refused: constraints that cannot be satisfied, with the violation by the least scales.
    """

    scales: Mapping[Key, float]
    refused: Mapping[ScaleConstraint, Violation]


def solve(
    least: Mapping[Key, float],
    fixed: Collection[Key],
    constraints: Sequence[ScaleConstraint],
    margin: float = MARGIN,
) -> Solution:
    """Return the smallest scales that satisfy the constraints.

    Args:
        least: the lower bound of each scale.
        fixed: scales that cannot be increased.
        constraints: the constraints.
        margin: the relative distance that scales keep from limits.
    """
    refused: dict[ScaleConstraint, Violation] = {}
    while True:
        kept = [constraint for constraint in constraints if constraint not in refused]
        scales, culprit = _increased(least, fixed, kept, margin)
        if culprit is None:
            return Solution(scales, refused)
        refused[culprit] = (
            culprit.violation(least) or culprit.violation(scales) or _endless(culprit)
        )


def _increased(
    least: Mapping[Key, float],
    fixed: Collection[Key],
    constraints: Sequence[ScaleConstraint],
    margin: float,
) -> tuple[dict[Key, float], ScaleConstraint | None]:
    """Increase scales until all limits hold; return them, and an unsatisfiable constraint."""
    scales = dict(least)
    causes: dict[Key, tuple[ScaleConstraint, Key]] = {}
    increased: Key | None = None
    for _ in range(2 * len(scales) + 2):
        increased = None
        for constraint in constraints:
            for bound in constraint.required(scales, margin):
                if bound.least <= scales[bound.key]:
                    continue
                if bound.key in fixed:
                    return scales, constraint
                increased = bound.key
                causes[increased] = constraint, bound.source
                scales[increased] = bound.least
                if bound.least > _LARGEST:
                    return scales, _cause(increased, causes, least)
        if increased is None:
            return scales, None
    return scales, None if increased is None else _cause(increased, causes, least)


def _cause(
    increased: Key, causes: Mapping[Key, tuple[ScaleConstraint, Key]], least: Mapping[Key, float]
) -> ScaleConstraint:
    """Follow the causes of an increased scale back to a cycle; return a constraint of it."""
    trail: list[ScaleConstraint] = []
    seen: dict[Key, int] = {}
    while increased not in seen and increased in causes:
        seen[increased] = len(trail)
        constraint, increased = causes[increased]
        trail.append(constraint)
    circle = trail[seen.get(increased, len(trail) - 1) :]
    return next((each for each in circle if each.violation(least)), circle[-1])


def _endless(constraint: ScaleConstraint) -> Violation:
    bound = constraint.bound
    if bound is None:
        raise ValueError("a constraint without a bound cannot be violated")
    return Violation(bound.ratio, math.inf, bound.high)
