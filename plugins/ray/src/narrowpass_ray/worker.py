"""The actor of a job over files: reads a shard, computes it, writes its file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from narrowpass.errors import NarrowpassError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass_ray.arrow import array_of, result_type
from narrowpass_ray.attempts import FOLDER, LOST, Attempts
from narrowpass_ray.places import Place
from narrowpass_ray.predictor import ERROR, Outcome, Predictor, Settings
from narrowpass_ray.rows import Column, as_column, gather, select
from narrowpass_ray.shards import Shard
from narrowpass_ray.source import Batch, read

SOURCE, ROW = "source", "row"
"""The columns that say where a row comes from."""


@dataclass(frozen=True)
class Job:
    """What a worker must know; pickled and sent to it.

    Attributes:
        settings: what is computed.
        source: the input.
        output: the folder of the results.
        batch_size: the largest number of rows in one run.
        keep: columns of the input that are copied into the output.
    """

    settings: Settings
    source: Place
    output: Place
    batch_size: int
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What became of a shard.

    Attributes:
        number: of the shard.
        rows: that were written, with those that have an error.
        bad: rows with an error.
        seconds: that it took.
        failure: why nothing was written; empty where the file is there.
        hopeless: whether the other shards will fail for the same reason.
    """

    number: int
    rows: int = 0
    bad: int = 0
    seconds: float = 0.0
    failure: str = ""
    hopeless: bool = False


class Worker:
    """Computes shards. The bundle is loaded with the first one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._predictor: Predictor | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the shards of a batch of Ray Data.

        Args:
            batch: a column ``shard``, with the JSON of `Shard`.

        Returns:
            A column for each field of `Done`.
        """
        found = [self.compute(Shard.from_json(str(text))) for text in batch["shard"]]
        names = [field.name for field in fields(Done)]
        return {name: np.array([getattr(done, name) for done in found]) for name in names}

    def compute(self, shard: Shard) -> Done:
        """Compute a shard and write its file; what goes wrong is in the answer."""
        start = time.perf_counter()
        try:
            if self._predictor is None:
                self._predictor = Predictor(self._job.settings)
        except NarrowpassError as error:
            return Done(shard.number, failure=sentence(error), hopeless=True)
        try:
            attempts = Attempts(self._job.output.inside(f"{FOLDER}/{shard.number:06d}.json"))
            table = self._table(shard, attempts, self._predictor)
            self._job.output.inside(shard.output).write(_encoded(table))
            attempts.end()
        except UsageError as error:
            return Done(shard.number, failure=sentence(error), hopeless=True)
        except Exception as error:  # noqa: BLE001  # the other shards go on
            return Done(shard.number, failure=sentence(error))
        bad = len(table) - table.column(ERROR).null_count
        return Done(shard.number, len(table), bad, time.perf_counter() - start)

    def _table(self, shard: Shard, attempts: Attempts, predictor: Predictor) -> pa.Table:
        parts = []
        wanted = self._wanted(predictor)
        for number, batch in enumerate(read(self._job.source, shard, self._job.batch_size, wanted)):
            outcome = self._outcome(batch, number, attempts, predictor)
            parts.append(self._part(batch, outcome, predictor))
        if not parts:
            empty = Batch([], [], {})
            parts = [self._part(empty, Outcome({}, {}), predictor)]
        return pa.concat_tables(parts, promote_options="permissive")

    def _wanted(self, predictor: Predictor) -> list[str] | None:
        """Return the columns to read; None for all, which `preprocess` may look at."""
        if self._job.settings.preprocess is not None:
            return None
        feeder = predictor.feeder
        inputs = [feeder.column(spec) for spec in feeder.inputs if not spec.has_default]
        return list(dict.fromkeys([*inputs, *self._job.keep]))

    def _outcome(
        self, batch: Batch, number: int, attempts: Attempts, predictor: Predictor
    ) -> Outcome:
        places = batch.readable
        if not places:
            return Outcome({}, {})
        if not attempts.is_deadly(number):
            attempts.begin(number)
            return predictor.predict(batch.columns)
        pieces: list[tuple[int, Outcome]] = []
        errors: dict[int, str] = {}
        for row in range(len(places)):
            if attempts.is_deadly(number, row):
                errors[row] = LOST
                continue
            attempts.begin(number, row)
            single = predictor.predict(select(batch.columns, row, row + 1))
            pieces.append((row, single))
            errors |= dict.fromkeys((row,) if single.errors else (), single.errors.get(0, ""))
        names = dict.fromkeys(name for _, single in pieces for name in single.columns)
        columns: dict[str, Column] = {}
        for name in names:
            parts = [([row], s.columns[name]) for row, s in pieces if name in s.columns]
            columns[name] = gather(parts, len(places))
        return Outcome(columns, errors)

    def _part(self, batch: Batch, outcome: Outcome, predictor: Predictor) -> pa.Table:
        places = batch.readable
        errors: list[str | None] = [batch.errors.get(place) for place in range(batch.count)]
        for row, text in outcome.errors.items():
            errors[places[row]] = text
        columns = {
            SOURCE: pa.array(batch.sources, pa.string()),
            ROW: pa.array(batch.numbers, pa.int64()),
        }
        for name in self._job.keep:
            if places and name not in batch.columns:
                known = ", ".join(batch.columns)
                raise UsageError(f"no column {name!r} to keep; there are {known}")
            columns[name] = _spread(places, batch.columns.get(name, []), batch.count)
        names = dict.fromkeys([*self._known(predictor), *outcome.columns])
        for name in names:
            if name in columns or name == ERROR:
                raise UsageError(f"two columns are called {name!r}; rename one in `postprocess`")
            values = outcome.columns.get(name)
            if values is None or all(value is None for value in values):
                kind = self._known(predictor).get(name)
                columns[name] = pa.nulls(batch.count, kind or pa.null())
            else:
                columns[name] = _spread(places, values, batch.count)
        columns[ERROR] = pa.array(errors, pa.string())
        return pa.table(columns)

    def _known(self, predictor: Predictor) -> dict[str, pa.DataType | None]:
        """Return the types of the results that are known beforehand: without `postprocess`."""
        settings = self._job.settings
        if settings.postprocess is not None:
            return {}
        return {
            spec.name: result_type(spec.dtype or "", len(spec.shape or ()))
            for spec in predictor.program.outputs(settings.method)
            if settings.outputs is None or spec.name in settings.outputs
        }


def _spread(places: Sequence[int], column: Column, count: int) -> pa.Array:
    """Return a column of all rows from that of the rows at `places`; null elsewhere."""
    return array_of(gather([(places, as_column(column))], count))


def _encoded(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
