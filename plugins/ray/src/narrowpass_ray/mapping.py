"""`map_batches`: a bundle over a dataset of Ray Data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from narrowpass.errors import UsageError
from narrowpass_ray.feeding import Padding
from narrowpass_ray.predictor import Function, Predictor, Settings

if TYPE_CHECKING:
    import ray.data


def map_batches(
    dataset: ray.data.Dataset,
    bundle: str,
    *,
    preprocess: Function | None = None,
    postprocess: Function | None = None,
    batch_size: int = 64,
    concurrency: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    keep: Sequence[str] = (),
    on_error: Literal["row", "raise"] = "row",
    padding: Padding | None = None,
    columns: Mapping[str, str] | None = None,
    **settings: Any,
) -> ray.data.Dataset:
    """Compute a method of a bundle for each row of a dataset.

    Actors load the bundle once each. On one host they map the same packed weights from the weights
    cache, so that memory hardly grows with their number. Batches reach the backend as numpy arrays
    that lie in Ray's object store: nothing is copied where types fit.

    Args:
        dataset: of Ray Data.
        bundle: the path of a bundle's folder, which every node can read.
        preprocess: turns a batch (arrays by column) into columns for the inputs; pickled.
        postprocess: turns the outputs into the columns of the result; pickled.
        batch_size: the largest number of rows in one run.
        concurrency: number of actors, or the least and the largest; None for as many as the
            cluster has CPUs for.
        num_cpus: CPUs that Ray schedules for an actor. It computes with as many threads, 1 for
            less than 2, whatever the host has.
        keep: columns of the dataset that are copied into the result.
        on_error: whether a row that cannot be computed has a text in the column ``error``, or ends
            the job.
        padding: of rows of different lengths; None to group them by shape.
        columns: the name of the column for an input, where they differ.
        settings: further fields of `Settings`: method, backend, outputs, cache, cache_dir.

    Returns:
        A dataset, lazy as those of Ray are; `Predictor.__call__` says what its columns are.

    Raises:
        UsageError: numbers out of range.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1: {batch_size}")
    chosen = Settings(
        bundle,
        threads=threads_of(num_cpus),
        preprocess=preprocess,
        postprocess=postprocess,
        padding=padding or Padding(),
        columns=dict(columns or {}),
        **settings,
    )
    return dataset.map_batches(
        Predictor,
        fn_constructor_kwargs={"settings": chosen, "keep": tuple(keep), "on_error": on_error},
        batch_size=batch_size,
        batch_format="numpy",
        zero_copy_batch=True,
        compute=actor_pool(concurrency, num_cpus),
        num_cpus=num_cpus,
    )


def threads_of(num_cpus: float) -> int:
    """Return the threads of an actor: its CPUs, and not those of the host.

    Raises:
        UsageError: a number that is not above 0.
    """
    if not 0 < num_cpus < math.inf:
        raise UsageError(f"num_cpus must be above 0: {num_cpus}")
    return max(1, int(num_cpus))


def actor_pool(
    concurrency: int | tuple[int, int] | None, num_cpus: float, tasks: int | None = None
) -> Any:
    """Return Ray's strategy for a number of actors; see `map_batches`.

    Args:
        concurrency: number of actors, or the least and the largest; None for all CPUs.
        num_cpus: of an actor.
        tasks: how many there are, where that is known: more actors would have nothing to do.

    Raises:
        UsageError: no actor.
    """
    import ray
    from ray.data import ActorPoolStrategy

    if concurrency is None:
        concurrency = max(1, int(ray.cluster_resources().get("CPU", 1) / num_cpus))
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    if not 1 <= least <= most:
        raise UsageError(f"concurrency must be at least 1, or a range: {concurrency}")
    if tasks is not None:
        least, most = min(least, tasks), min(most, tasks)
    if least == most:
        return ActorPoolStrategy(size=most)
    return ActorPoolStrategy(min_size=least, max_size=most)
