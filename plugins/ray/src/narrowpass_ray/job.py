"""A job over files: input to shards, shards to actors, one file of results for each shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from narrowpass.bundle import is_bundle
from narrowpass.errors import DataError, UsageError
from narrowpass_ray.cluster import connected, ray_errors
from narrowpass_ray.mapping import actor_pool, threads_of
from narrowpass_ray.places import Place
from narrowpass_ray.predictor import Settings
from narrowpass_ray.shards import Shard, Sizes, fingerprint, format_of, plan
from narrowpass_ray.worker import Done, Job, Worker

MANIFEST = "_narrowpass.json"
"""What the files of an output folder are results of."""

FORMAT = "narrowpass-ray 1"

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Summary:
    """What a job did.

    Attributes:
        shards: of the input.
        before: of these, written by earlier runs.
        rows: that this run wrote, with those that have an error.
        bad: of these, rows with an error.
        failed: messages of shards that were not written, by the number of the shard.
    """

    shards: int
    before: int
    rows: int
    bad: int
    failed: dict[int, str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def map_files(
    settings: Settings,
    source: str,
    output: str,
    *,
    kind: str | None = None,
    sizes: Sizes | None = None,
    batch_size: int = 64,
    concurrency: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    memory: int | None = None,
    keep: Sequence[str] = (),
    about: str = "",
    retry_errors: bool = False,
    address: str | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Compute a method of a bundle for each row of files, and write Parquet files.

    Each shard of the input becomes one file, which appears when it is whole. A job that is started
    again, after whatever ended it, computes the shards that are missing. Ray starts a worker or the
    work of a lost node anew. A row is written once: with the columns ``source`` and ``row``, those
    that are kept, the results, and ``error``, which is null where the row was computed.

    Args:
        settings: what is computed; its threads are those of `num_cpus`.
        source: a file or folder, or the URI of one.
        output: a folder, or its URI.
        kind: the format of the files; None for what their names say.
        sizes: of shards.
        batch_size: the largest number of rows in one run.
        concurrency: see `narrowpass_ray.map_batches`.
        num_cpus: see `narrowpass_ray.map_batches`.
        memory: bytes that Ray reserves for an actor; None for none.
        keep: columns of the input that are copied.
        about: names the functions of `settings`, so that another job is noticed.
        retry_errors: whether shards that have rows with errors are computed again.
        address: see `narrowpass_ray.cluster.connected`; Ray is only started where a shard is
            missing.
        progress: called with what is done, the shards done and the total.

    Raises:
        UsageError: options that do not fit, or an output of another job.
        InputError: an input without files, a bundle that cannot be read, or an output that cannot
            be written. What is written stays.
    """
    from narrowpass_ray import resume

    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1: {batch_size}")
    threads = threads_of(num_cpus)
    settings = replace(settings, threads=threads)
    if not is_bundle(settings.bundle):
        raise UsageError(
            f"{settings.bundle} is no bundle: build one first, narrowpass build MODEL -o OUT.narrow"
        )
    place, target = Place.of(source), Place.of(output)
    files = place.listed()
    chosen = format_of(files, kind, source)
    sizes = sizes or Sizes()
    identity = {
        "format": FORMAT,
        "bundle": hashlib.sha256(
            (Path(settings.bundle) / "manifest.json").read_bytes()
        ).hexdigest(),
        "input": fingerprint(files),
        "options": {
            "about": about,
            "backend": settings.backend,
            "batch_size": batch_size,
            "columns": dict(settings.columns),
            "keep": list(keep),
            "kind": chosen,
            "method": settings.method,
            "outputs": None if settings.outputs is None else list(settings.outputs),
            "padding": {
                "values": dict(settings.padding.values),
                "lengths": list(settings.padding.lengths),
            },
            "sizes": asdict(sizes),
        },
    }
    resume.claim(target, MANIFEST, identity)
    shards = plan(place, files, chosen, sizes)
    missing = resume.missing(target, shards, retry_errors=retry_errors)
    job = Job(settings, place, target, batch_size, tuple(keep))
    with connected(address) if missing else contextlib.nullcontext():
        summary = _run(job, missing, len(shards), concurrency, num_cpus, memory, progress)
    text = json.dumps({**identity, "summary": summary.to_json()}, indent=1)
    target.inside("_summary.json").write(text.encode())
    return summary


def _run(
    job: Job,
    missing: Sequence[Shard],
    total: int,
    concurrency: int | tuple[int, int] | None,
    num_cpus: float,
    memory: int | None,
    progress: Progress | None,
) -> Summary:
    before = total - len(missing)
    rows = bad = 0
    failed: dict[int, str] = {}
    show = progress or (lambda what, done, total: None)
    if missing:
        with contextlib.closing(_results(job, missing, concurrency, num_cpus, memory)) as results:
            for count, done in enumerate(results, start=1):
                if done.failure:
                    failed[done.number] = done.failure
                    if done.hopeless:
                        raise DataError(f"shard {done.number}: {done.failure}")
                rows, bad = rows + done.rows, bad + done.bad
                show(f"{rows} rows, {bad} with errors; shards", before + count, total)
    return Summary(total, before, rows, bad, failed)


def _results(
    job: Job,
    shards: Sequence[Shard],
    concurrency: int | tuple[int, int] | None,
    num_cpus: float,
    memory: int | None,
) -> Generator[Done]:
    """Yield what became of each shard, in any order."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # One block for each shard: what a lost worker had is computed anew, and nothing else. Ray Data
    # restarts an actor as often as it is lost: `Attempts` finds a row that does it.
    dataset = ray.data.from_items(
        [{"shard": shard.to_json()} for shard in shards], override_num_blocks=len(shards)
    ).map_batches(
        Worker,
        fn_constructor_args=(job,),
        batch_size=1,
        batch_format="numpy",
        compute=actor_pool(concurrency, num_cpus, len(shards)),
        num_cpus=num_cpus,
        memory=memory,
    )
    with ray_errors("the job"):
        for row in dataset.iter_rows():
            yield Done(**row)
