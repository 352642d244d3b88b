"""What each candidate offers each unit, measured in models of units side by side."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import BackendError, PassError
from narrowpass.framework.boundary import translate_errors
from narrowpass_analysis.values import run_on_samples
from narrowpass_auto.choice.offers import Offers
from narrowpass_auto.choice.problem import KEEP
from narrowpass_auto.graph.flat import build_flat, operands
from narrowpass_auto.measure.injection import injected
from narrowpass_auto.measure.trials import Baseline, Offer
from narrowpass_ir.inference import inferred

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass import Candidate, Context
    from narrowpass.calibration.samples import Samples
    from narrowpass.runtime.backend import Backend
    from narrowpass_auto.graph.units import Region, Unit
    from narrowpass_auto.measure.database import Database


_SAMPLES = 4
"""Samples that single units are run on: noise of rounding differs little between samples."""


def measure_offers(
    model: ir.Model,
    units: Sequence[Unit],
    regions: Sequence[Region],
    candidates: Mapping[str, Candidate],
    samples: Samples,
    ctx: Context,
    backend: Backend,
    database: Database | None,
    processor: str,
) -> Offers:
    """Measure what candidates offer.

    Args:
        model: that the units are of.
        units: of the model.
        regions: of the units.
        candidates: by name.
        samples: feeds for the model.
        ctx: of the pass.
        backend: runs the units.
        database: times; None where times do not count.
        processor: what times belong to.

    Raises:
        BackendError: the model or its units cannot be run.
        DataError: a sample does not fit.
    """
    by_unit: list[dict[str, Offer]] = [{} for _ in units]
    reasons: list[dict[str, str]] = [{} for _ in units]
    place = {unit.index: number for number, unit in enumerate(units)}
    done = 0
    for group, recorded in recorded_groups(model, units, samples, backend, _SAMPLES):
        flat = build_flat(model, group, recorded)
        baseline = Baseline(flat, group, backend, ctx, timed=database is not None)
        for index, offer in _timed(baseline.offers, database, processor).items():
            by_unit[place[index]][KEEP] = offer
        feeds = list(islice(samples, _SAMPLES))
        with injected(model, group, baseline.results, feeds, backend) as injection:
            for name, candidate in sorted(candidates.items()):
                ctx.observer.progress(f"auto: measuring {name}", done, len(units))
                try:
                    found, kept, noise = baseline.offers_of(candidate)
                except (BackendError, PassError) as error:
                    found, kept, noise = {}, {unit.index: str(error) for unit in group}, {}
                harm = injection.harm(noise)
                if database is None:
                    found = _estimated(found, candidate, group, model, ctx.target)
                for index, offer in _timed(found, database, processor).items():
                    harmed = replace(offer, harm=harm.get(index, offer.harm))
                    by_unit[place[index]][name] = harmed
                for index, reason in kept.items():
                    reasons[place[index]][name] = reason
        done += len(group)
    offers = Offers(units, regions, by_unit, reasons)
    _drop_equal(offers)
    return offers


def _drop_equal(offers: Offers) -> None:
    """Drop candidates that write the same as another in all units: each is run in whole models."""
    seen: dict[tuple[object, ...], str] = {}
    for name in offers.names():
        written = tuple(
            (offer.key, offer.loss, offer.bytes) if (offer := each.get(name)) else None
            for each in offers.by_unit
        )
        first = seen.setdefault(written, name)
        if first != name:
            offers.drop(name, f"it writes the same as {first}")


def _estimated(
    offers: Mapping[int, Offer],
    candidate: Candidate,
    units: Sequence[Unit],
    model: ir.Model,
    target: Backend | None,
) -> dict[int, Offer]:
    """Return offers with the times that the target estimates, 0 being that of the unit as it is."""
    if target is None:
        return dict(offers)
    nodes = {unit.index: unit.node for unit in units}
    with inferred(model), translate_errors(f"candidate {candidate.name!r} failed", PassError):
        return {
            index: replace(offer, seconds=-candidate.gain(nodes[index], target))
            for index, offer in offers.items()
        }


def _timed(
    offers: Mapping[int, Offer], database: Database | None, processor: str
) -> dict[int, Offer]:
    """Return offers with the times that count: those kept, else the medians of equal kernels."""
    if database is None:
        return dict(offers)
    equal: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers.values():
        equal[offer.key].append(offer)
    times = {}
    for key, members in equal.items():
        known = database.find(processor, key)
        times[key] = known or database.add(processor, key, _median(members))
    return {
        index: replace(
            offer,
            seconds=times[offer.key][0],
            entering=times[offer.key][1],
            leaving=times[offer.key][2],
        )
        for index, offer in offers.items()
    }


def _median(offers: Sequence[Offer]) -> tuple[float, float, float]:
    return (
        statistics.median(offer.seconds or 0.0 for offer in offers),
        statistics.median(offer.entering for offer in offers),
        statistics.median(offer.leaving for offer in offers),
    )


Array = np.ndarray[Any, Any]

_MOST_BYTES = 256 << 20
"""Recorded values that are in memory at once."""


def recorded_groups(
    model: ir.Model, units: Sequence[Unit], samples: Samples, backend: Backend, limit: int
) -> Iterator[tuple[list[Unit], list[Mapping[str, Array]]]]:
    """Yield units, as many as fit the memory, with the values that they read on each sample.

    Args:
        model: that the units are of.
        units: of the model.
        samples: feeds for the model; sizes are those of the first.
        backend: what runs it.
        limit: take so many samples at most.

    Raises:
        BackendError: the model cannot be run.
        DataError: a sample does not fit.
    """
    waiting = [unit for unit in units if operands(unit)]
    sizes = _sizes(model, waiting, samples, backend)
    while waiting:
        group: list[Unit] = []
        read: dict[str, int] = {}
        for unit in waiting:
            more = {name: sizes[name] for name in operands(unit)}
            if group and limit * sum({**read, **more}.values()) > _MOST_BYTES:
                break
            group.append(unit)
            read |= more
        waiting = waiting[len(group) :]
        yield group, _values(model, list(read), samples, backend, limit)


def _values(
    model: ir.Model, names: Sequence[str], samples: Samples, backend: Backend, limit: int
) -> list[Mapping[str, Array]]:
    fed = {value.name for value in model.graph.inputs}
    computed = [name for name in names if name not in fed]
    if not computed:
        return [{name: feeds[name] for name in names} for feeds in islice(samples, limit)]
    found: list[Mapping[str, Array]] = []
    for _, feeds, values in run_on_samples(model, computed, samples, backend, limit):
        both = {**values, **{name: feeds[name] for name in names if name in fed}}
        found.append({name: np.array(both[name]) for name in names})
    return found


def _sizes(
    model: ir.Model, units: Sequence[Unit], samples: Samples, backend: Backend
) -> dict[str, int]:
    """Return the bytes of each value that units read, on the first sample."""
    names = list(dict.fromkeys(name for unit in units for name in operands(unit)))
    sizes: dict[str, int] = {}
    for start in range(0, len(names), _AT_ONCE):
        (values,) = _values(model, names[start : start + _AT_ONCE], samples, backend, 1)
        sizes |= {name: array.nbytes for name, array in values.items()}
    return sizes


_AT_ONCE = 512
"""Values that are kept in the run that measures their sizes."""
