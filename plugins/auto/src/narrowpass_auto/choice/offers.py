"""What candidates offer each unit, and the integer program that follows from it.

Noise of independent roundings adds; that of one candidate in many units is not quite independent,
and data has samples that single units were not run on. So the noise of each candidate has a factor,
of least squared relative error over the runs of whole models, none below 0, with a penalty on what
differs from the mean. Least squares with bounds: Lawson and Hanson, *Solving Least Squares
Problems*, 1974.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from narrowpass_auto.choice.problem import KEEP, Choice, Cost, Link, Problem

if TYPE_CHECKING:
    from narrowpass_auto.graph.units import Region, Unit
    from narrowpass_auto.measure.trials import Offer


_PENALTY = 0.1
_LEAST = 0.05
"""No factor is below so much of the mean: runs may have been lucky."""


class Sensitivity:
    """Factors of candidates, fitted to runs.

    Args:
        names: of the candidates.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._noise: list[list[float]] = []
        self._measured: list[float] = []
        self._fitted = dict.fromkeys(names, 1.0)
        self._doubts: dict[str, float] = {}

    @property
    def factors(self) -> dict[str, float]:
        """By the name of each candidate, what the noise of its units alone is multiplied by."""
        return {name: fitted * self._doubts.get(name, 1.0) for name, fitted in self._fitted.items()}

    def doubt(self, name: str, factor: float) -> None:
        """Multiply the noise of a candidate by a factor, whatever its runs showed.

        Args:
            name: of the candidate.
            factor: by which other samples have more noise than those of the runs.
        """
        self._doubts[name] = factor

    def add(self, noise: Mapping[str, float], measured: float) -> None:
        """Note a run, and fit again.

        Args:
            noise: that the units of each candidate alone add to the outputs, by its name.
            measured: of the outputs. Runs without noise are left out.
        """
        row = [noise.get(name, 0.0) for name in self._names]
        if not (np.isfinite(measured) and measured > 0.0 and np.isfinite(row).all() and any(row)):
            return
        self._noise.append(row)
        self._measured.append(measured)
        rows = np.array(self._noise) / np.array(self._measured)[:, None]
        mean = float(np.exp(np.mean(-np.log(rows.sum(axis=1)))))
        count = len(self._names)
        penalty = np.sqrt(_PENALTY) * np.eye(count) / mean
        system = np.vstack([rows, penalty])
        wanted = np.concatenate([np.ones(len(rows)), np.full(count, np.sqrt(_PENALTY))])
        from scipy.optimize import nnls

        fitted, _ = nnls(system, wanted)
        least = _LEAST * mean
        self._fitted = {
            name: max(float(value), least) for name, value in zip(self._names, fitted, strict=True)
        }


@dataclass
class Offers:
    """What candidates offer each unit.

    Attributes:
        units: of the model.
        regions: of the units.
        by_unit: offers by candidate, for each unit; `KEEP` is the unit as it is.
        reasons: why a candidate offers a unit nothing, likewise.
        factors: what times of a candidate are multiplied by, since its runs in whole models said
            so; by name, 1 for those that are not there.
    """

    units: Sequence[Unit]
    regions: Sequence[Region]
    by_unit: Sequence[dict[str, Offer]]
    reasons: Sequence[dict[str, str]]
    factors: dict[str, float] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the candidates that offer something to some region, sorted."""
        return sorted({name for costs in self._of_regions() for name in costs} - {KEEP})

    def uniform(self, name: str) -> Choice:
        """Return the choice of one candidate wherever it is offered."""
        return tuple(name if name in costs else KEEP for costs in self._of_regions())

    def drop(self, name: str, reason: str) -> None:
        """Offer a candidate to no unit any more, for a reason."""
        for offers, reasons in zip(self.by_unit, self.reasons, strict=True):
            if offers.pop(name, None) is not None:
                reasons[name] = reason

    def noise(self, choice: Choice) -> dict[str, float]:
        """Return the noise that each candidate's units add to the outputs on the worst sample."""
        totals: dict[str, list[float]] = {}
        for region, name in zip(self.regions, choice, strict=True):
            if name != KEEP:
                harm = self._harm(region, name)
                before = totals.setdefault(name, [0.0] * len(harm))
                totals[name] = [a + b for a, b in zip(before, harm, strict=True)]
        return {name: max(total) for name, total in totals.items()}

    def problem(self, sensitivity: Sensitivity) -> Problem:
        """Return the integer program."""
        costs = [
            {name: self._cost(region, name, sensitivity) for name in names}
            for region, names in zip(self.regions, self._of_regions(), strict=True)
        ]
        return Problem(costs, self._links())

    def _of_regions(self) -> list[list[str]]:
        """Return for each region the candidates that all its units are offered."""
        return [
            [
                name
                for name in self.by_unit[region.units[0]]
                if all(name in self.by_unit[unit] for unit in region.units)
            ]
            for region in self.regions
        ]

    def _cost(self, region: Region, name: str, sensitivity: Sensitivity) -> Cost:
        offers = [self.by_unit[unit][name] for unit in region.units]
        factor = self.factors.get(name, 1.0)
        sizes: dict[object, int] = {}
        for unit, offer in zip(region.units, offers, strict=True):
            # A constant of several units is stored once.
            sizes[self.units[unit].weights] = offer.bytes
        return Cost(
            factor * sum(offer.seconds or 0.0 for offer in offers),
            factor * sum(offer.entering for offer in offers),
            factor * sum(offer.leaving for offer in offers),
            sum(sizes.values()),
            tuple(sensitivity.factors.get(name, 0.0) * noise for noise in self._harm(region, name)),
        )

    def _harm(self, region: Region, name: str) -> tuple[float, ...]:
        """Return the noise that a region adds to the outputs on each sample."""
        harms = [self.by_unit[unit][name].harm for unit in region.units]
        return tuple(map(sum, zip(*harms, strict=True)))

    def _links(self) -> list[Link]:
        region_of = {
            unit: index for index, region in enumerate(self.regions) for unit in region.units
        }
        links = []
        for unit in self.units:
            for side, others, open_end in (
                ("entering", unit.before, unit.from_input),
                ("leaving", unit.after, unit.to_output),
            ):
                if not others or open_end:
                    continue
                spared = {
                    name: self.factors.get(name, 1.0) * getattr(offer, side)
                    for name, offer in self.by_unit[unit.index].items()
                }
                neighbours = frozenset(region_of[other] for other in others)
                links.append(Link(region_of[unit.index], neighbours, spared))
        return links


def correct_times(
    offers: Offers, sensitivity: Sensitivity, name: str, choice: Choice, ratio: float
) -> None:
    """Scale the times of a candidate to what a whole model with it showed.

    What kernels alone do not show (fused operators, data that stays in caches) scales all alike.

    Args:
        offers: changed.
        sensitivity: any.
        name: the candidate.
        choice: takes it wherever it is offered.
        ratio: time of the whole model over that of the model as it was.
    """
    problem = offers.problem(sensitivity)
    keep = problem.total(problem.keep()).seconds
    rest = sum(
        costs[KEEP].seconds
        for costs, chosen in zip(problem.costs, choice, strict=True)
        if chosen == KEEP
    )
    narrow = problem.total(choice).seconds - rest
    measured = ratio * keep - rest
    if narrow > 0.0:
        limits = _LEAST_FACTOR, 1.0 / _LEAST_FACTOR
        factor = offers.factors.get(name, 1.0) * measured / narrow
        offers.factors[name] = min(max(factor, limits[0]), limits[1])


_LEAST_FACTOR = 0.25


def best_for(offers: Offers) -> Mapping[str, int]:
    """Return for each candidate the number of units that it is offered to."""
    counts: dict[str, int] = {}
    for by_name in offers.by_unit:
        for name in by_name:
            counts[name] = counts.get(name, 0) + 1
    return counts
