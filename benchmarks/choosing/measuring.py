"""The figures of one model: its forms, their errors on fresh samples, and their times in turns."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data import samples
from forms import AUTO, WIDE, builders, limit_of
from gallery import collect
from gallery.model import Array, Feeds
from gallery.packages import FOLDER
from peers import PEERS
from runners.apart import first_line
from runners.loaders import load

import narrowpass
from narrowpass_auto.limits import Limit

Outputs = Mapping[str, Array]
Run = Callable[[Feeds], Outputs]

_TURN = 0.05
"""Seconds that a form runs for in its turn, once at least."""


@dataclass(frozen=True)
class Settings:
    """How models are measured.

    Attributes:
        limit: text of a limit for all models; None for that of each.
        rounds: how often each form has its turn.
    """

    limit: str | None
    rounds: int


def measure(name: str, settings: Settings) -> dict[str, Any]:
    """Return the figures of a model.

    Raises:
        Exception: there is no file of it, or it does not run as `fold` leaves it.
    """
    logging.getLogger().setLevel(logging.ERROR)
    model = next(model for model in collect() if model.name == name)
    path = model.build(FOLDER)
    limit = settings.limit or limit_of(model.name)
    seen, fresh = samples(path, model, limit)
    row: dict[str, Any] = {"group": model.group, "limit": limit, "samples": len(seen)}
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {}
        forms: dict[str, dict[str, Any]] = {}
        right: list[Outputs] = []
        for form, build in builders(path, Path(folder), seen, limit).items():
            run, forms[form] = _judged(form, build, fresh, right, limit)
            if run is not None:
                runs[form] = run
            elif form == WIDE:
                return {**row, "failure": forms[WIDE]["failure"]}
        for figures in forms.values():
            figures["same"] = figures.get("digest") == forms[WIDE]["digest"]
        timed = {form: runs[form] for form in runs if _counts(form, forms[form])}
        for form, seconds in _in_turns(timed, fresh, settings.rounds).items():
            forms[form]["seconds"] = seconds
    return {**row, "forms": forms}


def _counts(name: str, figures: Mapping[str, Any]) -> bool:
    """Return whether a form is timed: another model than that as fp32, and within the limit."""
    return name == WIDE or (not figures["same"] and (figures["within"] or name == AUTO))


def _judged(
    name: str,
    build: Callable[[], tuple[Path, dict[str, Any]]],
    fresh: Sequence[Feeds],
    right: list[Outputs],
    limit: str,
) -> tuple[Run | None, dict[str, Any]]:
    """Return what runs a form, and its figures; None, and why, where it cannot be built or run.

    Args:
        name: of the form.
        build: writes it.
        fresh: the samples that it is judged on.
        right: the outputs of the first form, as which they are kept.
        limit: has the metric.
    """
    start = time.perf_counter()
    try:
        file, figures = build()
        figures["build"] = time.perf_counter() - start
        run = _loaded(file, name, list(right[0]) if right else [])
        meter = Limit.parse(limit).meter()
        running = 0.0
        for place, feeds in enumerate(fresh):
            start = time.perf_counter()
            outputs = {key: np.array(value) for key, value in run(feeds).items()}
            running += time.perf_counter() - start
            if place == len(right):
                right.append(outputs)
            meter.add(right[place], outputs)
        figures["sample"] = running / len(fresh)  # of each length that there is
        figures["error"] = meter.error
        figures["within"] = meter.error <= Limit.parse(limit).bound
        figures["shown"] = Limit.parse(limit).shown(meter.error)
    except Exception as error:  # noqa: BLE001  # the table says what a tool cannot do
        return None, {"failure": first_line(error)[:300], "within": False}
    return run, figures


def _loaded(file: Path, name: str, outputs: Sequence[str]) -> Run:
    threads = len(os.sched_getaffinity(0))
    if name not in PEERS:
        return narrowpass.load(file, "xnn-cpu", threads=threads).run
    run = load(PEERS[name].runtime, str(file), threads)
    return lambda feeds: dict(zip(outputs, run(feeds), strict=True))


def _in_turns(
    runs: Mapping[str, Run], fresh: Sequence[Feeds], rounds: int
) -> dict[str, list[float]]:
    """Return the quartiles of the seconds of a run of each form.

    A round of turns has other forms first each time; a turn counts as its fastest run, since other
    programs only add to times.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        names = list(runs)
        feeds = fresh[turn % len(fresh)] if _one_shape(fresh) else fresh[0]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name](feeds)  # the weights are in the caches of the one before
            least, end = float("inf"), time.perf_counter() + _TURN
            while least == float("inf") or time.perf_counter() < end:
                start = time.perf_counter()
                runs[name](feeds)
                least = min(least, time.perf_counter() - start)
            times[name].append(least)
    return {
        name: [float(q) for q in np.percentile(found, [25, 50, 75])]
        for name, found in times.items()
    }


def _one_shape(fresh: Sequence[Feeds]) -> bool:
    return len({tuple(np.shape(value) for value in feeds.values()) for feeds in fresh}) == 1
