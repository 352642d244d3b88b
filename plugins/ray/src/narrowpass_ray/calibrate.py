"""Calibration data that is larger than a machine: workers run the model, meters are added.

`SharedSamples` are samples for ``narrowpass.build(calibration=...)``. A pass that only iterates
over them reads the first ones; `int8-sym` lets workers observe all of them, as
`narrowpass_int8_sym.calibration.spread` says.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass import Bundle, CompileOptions, Samples, load_plugins
from narrowpass.errors import DataError, NarrowpassError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass.runtime.meters import Counts, Extremes
from narrowpass_ray.cluster import connected, ray_errors
from narrowpass_ray.mapping import actor_pool, threads_of
from narrowpass_ray.places import Place
from narrowpass_ray.predictor import Function
from narrowpass_ray.rows import Array, Column
from narrowpass_ray.shards import Shard, Sizes, format_of, plan
from narrowpass_ray.source import read

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.runtime.meters import Meter

Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Recipe:
    """How a shard becomes samples; pickled and sent to workers.

    Attributes:
        place: of the input.
        batch_size: rows of a sample; an npz file is one sample, whatever it has.
        preprocess: turns a batch of columns into columns for the inputs.
    """

    place: Place
    batch_size: int
    preprocess: Function | None

    def samples(self, shards: Sequence[Shard]) -> Iterator[Feeds]:
        """Yield the samples of shards, in their order.

        Raises:
            DataError: a row that cannot be read, or rows of several shapes.
        """
        for shard in shards:
            size = 1 << 62 if shard.format == "npz" else self.batch_size
            for batch in read(self.place, shard, size, None):
                for place, text in batch.errors.items():
                    raise DataError(f"{batch.sources[place]}, row {batch.numbers[place]}: {text}")
                columns: Mapping[str, Any] = batch.columns
                if self.preprocess is not None:
                    columns = self.preprocess(dict(columns))
                yield {name: _array(name, column) for name, column in columns.items()}


def _array(name: str, column: Column) -> Array:
    if isinstance(column, np.ndarray):
        return column
    rows = [np.asarray(value) for value in column]
    if any(row.shape != rows[0].shape for row in rows):
        raise DataError(
            f"column {name!r} has rows of several shapes: pad them in `preprocess`, or pass a "
            "batch size of 1"
        )
    return np.stack(rows)


@dataclass(frozen=True)
class SharedSamples(Samples):
    """Samples in files that all nodes of a cluster can read; see `shared_samples`.

    Attributes:
        recipe: how shards become samples.
        shards: of the input.
        concurrency: see `narrowpass_ray.map_batches`.
        num_cpus: likewise.
        address: of the cluster.
    """

    recipe: Recipe = field(kw_only=True)
    shards: tuple[Shard, ...] = field(kw_only=True)
    concurrency: int | tuple[int, int] | None = field(kw_only=True)
    num_cpus: float = field(kw_only=True)
    address: str | None = field(kw_only=True)

    def scan(self, limit: int | None) -> tuple[int, Mapping[str, tuple[int, ...]], str]:
        """Return the number of samples, the shapes of the first one, and a hash of all.

        Raises:
            DataError: a sample that cannot be read, or none.
        """
        counts, sha = 0, hashlib.sha256()
        sizes: Mapping[str, tuple[int, ...]] = {}
        for found in self._scanned:
            taken = found.count if limit is None else min(found.count, limit - counts)
            if taken > 0 and not counts:
                sizes = found.sizes
            sha.update(f"{found.sha256} {taken}".encode())
            counts += taken
        if not counts:
            raise DataError(f"{self.source} holds no samples")
        return counts, sizes, sha.hexdigest()

    def observe(
        self, model: ir.Model, backend: str, meters: Mapping[str, Meter], limit: int
    ) -> Iterator[tuple[int, str, Mapping[str, Meter]]]:
        """Run a model on all samples; see `narrowpass_int8_sym.calibration.spread`.

        Raises:
            DataError: a sample that does not fit the model.
            BackendError: the model cannot be run, or Ray cannot go on.
        """
        import ray

        parts: list[tuple[Shard, int]] = []
        left = limit
        for shard, found in zip(self.shards, self._scanned, strict=True):
            if left > 0 and found.count:
                parts.append((shard, min(found.count, left)))
            left -= found.count
        with connected(self.address):
            # The model lies in the object store once for each node.
            packed = ray.put(_packed(model))
            fresh = {name: emptied(meter) for name, meter in meters.items()}
            worker = functools.partial(Observing, packed, backend, fresh, threads_of(self.num_cpus))
            for number, found in self._run(worker, parts):
                part = self.shards[number]
                yield found["count"], f"{part.names[0]} of {self.source}", found["meters"]

    @functools.cached_property
    def _scanned(self) -> list[Scanned]:
        with connected(self.address):
            found = dict(self._run(Scanning, [(shard, 1 << 62) for shard in self.shards]))
        return [found[shard.number] for shard in self.shards]

    def _run(
        self, worker: Callable[[], Callable[[Iterator[Feeds]], Any]], parts: list[tuple[Shard, int]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the result of a worker for each shard, by number, in any order and each once."""
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        items = [{"shard": shard.to_json(), "limit": limit} for shard, limit in parts]
        dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Actor,
            fn_constructor_args=(worker, self.recipe),
            batch_size=1,
            batch_format="numpy",
            compute=actor_pool(self.concurrency, self.num_cpus, len(items)),
            num_cpus=self.num_cpus,
        )
        missing = {shard.number for shard, _ in parts}
        with ray_errors("the calibration"):
            for row in dataset.iter_rows():
                # What Ray computes anew after a loss may not count twice.
                if row["number"] not in missing:
                    continue
                missing.remove(row["number"])
                if row["error"]:
                    raise DataError(row["error"])
                yield row["number"], pickle.loads(row["result"])  # our own workers'
        if missing:
            raise DataError(f"Ray lost {len(missing)} parts of {self.source}; run it again")


@dataclass(frozen=True)
class Scanned:
    """What a shard has.

    Attributes:
        count: of its samples.
        sizes: the shapes of the first one.
        sha256: of all.
    """

    count: int
    sizes: Mapping[str, tuple[int, ...]]
    sha256: str


class Scanning:
    """A worker that counts and hashes samples."""

    def __call__(self, samples: Iterator[Feeds]) -> Scanned:
        """Return what the samples are."""
        count, sha = 0, hashlib.sha256()
        sizes: Mapping[str, tuple[int, ...]] = {}
        for feeds in samples:
            sizes = sizes or {name: array.shape for name, array in feeds.items()}
            count += 1
            for name in sorted(feeds):
                array = np.ascontiguousarray(feeds[name])
                sha.update(f"{len(name)} {name} {array.dtype.name} {array.shape}\n".encode())
                if array.dtype.hasobject:
                    sha.update(repr(array.tolist()).encode())
                else:
                    sha.update(array.reshape(-1).view(np.uint8).data)
        return Scanned(count, sizes, sha.hexdigest())


class Observing:
    """A worker that runs a model, and keeps what meters record.

    Args:
        packed: a reference to what `_packed` returned.
        backend: what runs it, with its options.
        meters: of the kind that is wanted, empty.
        threads: of a run.
    """

    def __init__(
        self, packed: Any, backend: str, meters: Mapping[str, Meter], threads: int
    ) -> None:
        import ray

        self._meters = meters
        chosen = load_plugins().registry.backend(backend)
        with tempfile.TemporaryDirectory(prefix="narrowpass-") as folder:
            for name, data in ray.get(packed).items():
                path = Path(folder) / "model.narrow" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            bundle = Bundle.load(Path(folder) / "model.narrow")
            outputs = {value.name for value in bundle.methods["main"].graph.outputs}
            keep = tuple(name for name in meters if name not in outputs)
            options = CompileOptions(threads=threads, keep=keep, observe=True, cache=False)
            self._program = chosen.compile(bundle, options)

    def __call__(self, samples: Iterator[Feeds]) -> dict[str, Any]:
        """Return the number of samples, and the meters."""
        meters = {name: emptied(meter) for name, meter in self._meters.items()}
        count = 0
        for feeds in samples:
            self._program.observe(feeds, meters)
            count += 1
        return {"count": count, "meters": meters}


class _Actor:
    """Calls a worker that is created with the first shard, so that errors reach the caller."""

    def __init__(self, worker: Callable[[], Any], recipe: Recipe) -> None:
        self._create, self._recipe = worker, recipe
        self._worker: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        rows = [self._row(*pair) for pair in zip(batch["shard"], batch["limit"], strict=True)]
        names = ("number", "error", "result")
        return {name: np.array([row[i] for row in rows], object if i else np.int64)
                for i, name in enumerate(names)}  # fmt: skip

    def _row(self, text: str, limit: int) -> tuple[int, str, bytes]:
        shard = Shard.from_json(str(text))
        where = shard.names[0]
        try:
            self._worker = self._worker or self._create()
            samples = Samples(where, lambda: self._recipe.samples([shard]))
            found = self._worker(islice(_any(samples, shard), int(limit)))
        except Exception as error:  # noqa: BLE001  # reported by the caller's process
            own = "" if isinstance(error, NarrowpassError) else f"{where}: "
            return shard.number, f"{own}{sentence(error)}", b""
        return shard.number, "", pickle.dumps(found)


def _any(samples: Samples, shard: Shard) -> Iterator[Feeds]:
    """Iterate over the samples of a shard, which may have none: a range without a line."""
    if shard.format in ("jsonl", "parquet"):
        return iter(samples.open())
    return iter(samples)


def emptied(meter: Meter) -> Meter:
    """Return a meter of the same kind and bins that has recorded nothing."""
    if isinstance(meter, Counts):
        return Counts(meter.bins, meter.below, meter.width, meter.folded)
    return Extremes()


def _packed(model: ir.Model) -> dict[str, Array]:
    """Return the files of a bundle of a model, by name."""
    with tempfile.TemporaryDirectory(prefix="narrowpass-") as folder:
        path = Path(folder) / "model.narrow"
        Bundle({"main": model}).save(path)
        return {
            str(file.relative_to(path)): np.fromfile(file, np.uint8)
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }


def shared_samples(
    source: str,
    *,
    kind: str | None = None,
    batch_size: int = 16,
    preprocess: Function | None = None,
    sizes: Sizes | None = None,
    concurrency: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    address: str | None = None,
) -> SharedSamples:
    """Return calibration samples that workers of a cluster go through.

    Ranges of the calibrators ``minmax``, ``percentile``, ``l2`` and ``entropy`` are the same, bit
    for bit, as those of one machine that goes through the same samples with a backend that computes
    the same bits: the same instruction sets.

    Args:
        source: a file or folder, or the URI of one, that all nodes can read: npz files, each a
            sample with an array for each input; or Parquet, JSON lines or images.
        kind: the format of the files; None for what their names say.
        batch_size: rows of a sample, but for npz; samples do not go beyond a shard.
        preprocess: turns a batch of columns into columns for the inputs, in their types; pickled.
        sizes: of shards.
        concurrency: see `narrowpass_ray.map_batches`.
        num_cpus: likewise.
        address: see `narrowpass_ray.cluster.connected`.

    Raises:
        UsageError: an unknown format, or a number out of range.
        DataError: there are no files.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1: {batch_size}")
    place = Place.of(source)
    files = place.listed()
    chosen = format_of(files, kind, source)
    shards = tuple(plan(place, files, chosen, sizes or Sizes()))
    recipe = Recipe(place, batch_size, preprocess)
    return SharedSamples(
        source,
        lambda: recipe.samples(shards),
        recipe=recipe,
        shards=shards,
        concurrency=concurrency,
        num_cpus=num_cpus,
        address=address,
    )
