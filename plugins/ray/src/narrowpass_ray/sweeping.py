"""A sweep: many pipelines built and judged at once, resumable, as a table and a Pareto plot.

Its pipelines come from texts with alternatives.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowpass.errors import DataError, UsageError
from narrowpass.framework.options import quote
from narrowpass_ir.files import create_folder
from narrowpass_ray import resume
from narrowpass_ray.cluster import connected, ray_errors
from narrowpass_ray.job import MANIFEST
from narrowpass_ray.mapping import threads_of
from narrowpass_ray.places import Place
from narrowpass_ray.shards import fingerprint
from narrowpass_ray.trial import Judging, Trial, identifier, run_trial

if TYPE_CHECKING:
    from narrowpass_ray.job import Progress


METRICS: Mapping[str, Callable[[float], float]] = {
    "relative": lambda value: value,
    "sqnr": lambda value: -value,
    "cosine": lambda value: 1.0 - value,
    "top1": lambda value: 1.0 - value,
}
"""How large the error of a value of a metric is."""


def sweep(
    judging: Judging,
    pipelines: Sequence[str],
    output: str,
    *,
    num_cpus: float = 1,
    address: str | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Build and judge pipelines on a cluster, each in a task of its own.

    The result of each is a file in `output`. A sweep that is started again computes those that are
    missing, and those that failed.

    Args:
        judging: how they are judged; its threads are those of `num_cpus`.
        pipelines: their texts, each once.
        output: a folder, or its URI.
        num_cpus: CPUs that Ray schedules for a trial. For times that nothing disturbs, all that a
            node has.
        address: see `narrowpass_ray.cluster.connected`.
        progress: called with what is done, the trials done and the total.

    Returns:
        A trial for each pipeline, in their order; one that failed has an error.

    Raises:
        UsageError: no pipelines, or an output of another sweep.
        InputError: a model that cannot be read, or an output that cannot be written.
    """
    if not pipelines or len(set(pipelines)) < len(pipelines):
        raise UsageError("a sweep needs pipelines, each once")
    judging = replace(judging, threads=threads_of(num_cpus))
    target = Place.of(output)
    identity = {
        "format": "narrowpass-ray sweep 1",
        "model": fingerprint(Place.of(judging.model).listed()),
        "judging": asdict(judging),
    }
    resume.claim(target, MANIFEST, identity)
    if judging.bundles is not None:
        create_folder(Path(judging.bundles))
    found = {text: trial for text in pipelines if (trial := _read(target, text)) is not None}
    missing = [text for text in pipelines if text not in found]
    show = progress or (lambda what, done, total: None)
    if missing:
        with connected(address):
            for trial in _results(judging, missing, num_cpus):
                found[trial.pipeline] = trial
                if not trial.error:
                    data = json.dumps(asdict(trial), indent=1).encode()
                    _file(target, trial.pipeline).write(data)
                show("judging pipelines", len(found), len(pipelines))
    return [found[text] for text in pipelines]


def _file(output: Place, pipeline: str) -> Place:
    return output.inside(f"trial-{identifier(pipeline)}.json")


def _read(output: Place, pipeline: str) -> Trial | None:
    place = _file(output, pipeline)
    data = place.read()
    if data is None:
        return None
    try:
        return Trial(**json.loads(data))
    except (TypeError, ValueError) as error:
        raise DataError(f"{place.path} is damaged: {error}; delete it") from error


def _results(judging: Judging, pipelines: Sequence[str], num_cpus: float) -> Iterator[Trial]:
    """Yield trials as they end; one whose worker was lost is tried three times more."""
    import ray
    from ray.exceptions import RayError

    remote = ray.remote(run_trial).options(num_cpus=num_cpus, max_retries=3)
    waiting: dict[Any, str] = {remote.remote(judging, text): text for text in pipelines}
    with ray_errors("the sweep"):
        while waiting:
            (ended,), _ = ray.wait(list(waiting))
            text = waiting.pop(ended)
            try:
                yield ray.get(ended)
            except RayError as error:
                yield Trial(text, f"the worker ended: {' '.join(str(error).split())}")


def front(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Return the trials that no other one beats in both the time of a run and the error."""
    usable = [trial for trial in trials if not trial.error and metric in trial.metrics]
    found: list[Trial] = []
    for trial in sorted(usable, key=lambda trial: (trial.ratio, error_of(trial, metric))):
        if not found or error_of(trial, metric) < error_of(found[-1], metric):
            found.append(trial)
    return found


def error_of(trial: Trial, metric: str) -> float:
    """Return the error of a trial: the smaller, the better.

    Raises:
        UsageError: an unknown metric, or one that the outputs do not have.
    """
    if metric not in METRICS:
        raise UsageError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    if metric not in trial.metrics:
        raise UsageError(f"outputs of the model have no {metric}; choose another metric")
    return METRICS[metric](trial.metrics[metric])


def exhibits(trials: Sequence[Trial], metric: str) -> list[dict[str, Any]]:
    """Return a plot and a table, as `narrowpass.Context.exhibits` has them."""
    best = front(trials, metric)
    usable = [trial for trial in trials if not trial.error]
    points = [
        {
            "x": trial.ratio,
            "y": error_of(trial, metric),
            "label": trial.pipeline or "no passes",
            "kind": "front" if trial in best else "",
        }
        for trial in usable
    ]
    rows = [
        [
            trial.pipeline or "no passes",
            trial.ratio,
            trial.bytes / trial.before,
            *(trial.metrics.get(name, "") for name in METRICS),
            "yes" if trial in best else "",
        ]
        for trial in usable
    ]
    rows += [
        [trial.pipeline, "", "", "", "", "", "", trial.error] for trial in trials if trial.error
    ]
    columns = ["pipeline", "time", "bytes", *METRICS, "on the front"]
    return [
        {
            "title": "Time and error of the pipelines",
            "plot": {
                "x": "time of a run, 1 as it was",
                "y": f"error: {metric}" if metric == "relative" else f"error by {metric}",
                "log": ["y"],
                "limit": None,
                "points": points,
            },
        },
        {
            "title": "Pipelines",
            "table": {"columns": columns, "rows": rows, "numbers": columns[1:-1]},
        },
    ]


_CHOICE = re.compile(r"<([^<>]*)>")


def expand(text: str) -> list[str]:
    """Return the pipelines of a text, where ``<a|b>`` stands for one of several texts.

    ``fold,int8-sym{calibrator=<l2|entropy>}`` is two pipelines, with two such places four.

    Raises:
        UsageError: a ``<`` without its ``>``.
    """
    parts = _CHOICE.split(text)
    if any("<" in part or ">" in part for part in parts[::2]):
        raise UsageError(f"--grid {text}: write alternatives as <a|b>")
    choices = [[part] if index % 2 == 0 else part.split("|") for index, part in enumerate(parts)]
    return ["".join(chosen).strip(",") for chosen in itertools.product(*choices)]


def pipelines(grid: Sequence[str], limits: Sequence[str]) -> list[str]:
    """Return the pipelines of a sweep, each once.

    Args:
        grid: texts with alternatives; empty for one pipeline without passes.
        limits: on the error, such as ``rel:1e-2``: each pipeline is followed by ``auto`` with each.
            Empty for none.
    """
    found = [pipeline for text in grid or [""] for pipeline in expand(text)]
    if limits:
        narrowing = [f"auto{{max-error={quote(limit)}}}" for limit in limits]
        found = [f"{text},{last}".strip(",") for text in found for last in narrowing]
    return list(dict.fromkeys(found))
