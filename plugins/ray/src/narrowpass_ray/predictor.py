"""The class of an actor: loads a bundle once, and computes batches of rows.

A batch that fails is divided until the rows that fail stand alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from narrowpass.errors import DataError, PluginError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass_ray.feeding import Feeder, Group, Padding, chunked, fixed_rows
from narrowpass_ray.rows import Array, Column, Columns, as_column, count_rows, gather, select

if TYPE_CHECKING:
    from narrowpass import Program


Function: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From columns to columns, with the same number of rows in the same order."""

ERROR = "error"
"""The column with what is wrong with a row."""


@dataclass(frozen=True)
class Settings:
    """What an actor computes; pickled and sent to it.

    Attributes:
        bundle: the path of a bundle's folder, which every node can read; a relative one is
            completed where the settings are created.
        method: which of its methods.
        backend: its name, with options; None for the available one of highest priority.
        threads: of each actor: the CPUs that Ray schedules for it.
        cache: whether packed weights are mapped from the weights cache, once for each host.
        cache_dir: where that is; None for the user's cache directory.
        columns: the name of the column for an input, where they differ.
        outputs: to return; None for those of the method.
        padding: of rows of different lengths.
        preprocess: turns a batch of columns into columns for the inputs.
        postprocess: turns the outputs into the columns of the result.
    """

    bundle: str
    method: str = "main"
    backend: str | None = None
    threads: int = 1
    cache: bool = True
    cache_dir: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    padding: Padding = field(default_factory=Padding)
    preprocess: Function | None = None
    postprocess: Function | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise UsageError(f"an actor needs at least one thread, not {self.threads}")
        # Not pathlib: its `absolute` leaves "..", and `resolve` follows links.
        object.__setattr__(self, "bundle", os.path.abspath(self.bundle))  # noqa: PTH100


@dataclass(frozen=True)
class Outcome:
    """What was computed of a batch.

    Attributes:
        columns: of the result; None in a list stands for a row with an error.
        errors: a message for each row that could not be computed.
    """

    columns: dict[str, Column]
    errors: dict[int, str]


class Predictor:
    """Computes batches with a bundle that is loaded once.

    Threads may share it; runs take turns as the backend says.
    """

    def __init__(
        self,
        settings: Settings,
        keep: Sequence[str] = (),
        on_error: Literal["row", "raise"] = "row",
    ) -> None:
        """Load the bundle.

        Args:
            settings: what is computed.
            keep: columns of the input that `__call__` copies into its result.
            on_error: whether `__call__` adds a column ``error``, or raises the first error.

        Raises:
            NarrowpassError: as `narrowpass.load`; a method, input or output that is not there.
        """
        import narrowpass

        if not Path(settings.bundle).is_dir():
            raise UsageError(
                f"{settings.bundle}: this node has no bundle there; put it on storage that all "
                "nodes mount, or copy it to the same path on each"
            )
        self._settings, self._keep, self._raise = settings, tuple(keep), on_error == "raise"
        self.program: Program = narrowpass.load(
            settings.bundle,
            settings.backend,
            threads=settings.threads,
            cache=settings.cache,
            cache_dir=settings.cache_dir,
        )
        inputs = self.program.inputs(settings.method)
        self.feeder = Feeder(inputs, settings.columns, settings.padding)
        self._rows = fixed_rows(inputs)
        specs = {spec.name: spec for spec in self.program.outputs(settings.method)}
        for name in settings.outputs or ():
            if name not in specs:
                raise UsageError(f"no output {name!r}; there are {', '.join(specs)}")
        self._axes = {name: specs[name].shape for name in settings.outputs or specs}

    def predict(self, columns: Columns) -> Outcome:
        """Compute a batch, and keep the errors of single rows apart.

        Raises:
            UsageError: an input without a column, or functions that return no columns.
        """
        count = count_rows(columns, "the batch")
        results, errors = isolate(count, lambda start, stop: self._compute(columns, start, stop))
        names = dict.fromkeys(name for _, found in results for name in found)
        for rows, found in results:
            if missing := [name for name in names if name not in found]:
                raise UsageError(
                    f"`postprocess` returned no column {missing[0]!r} for rows {rows.start} to "
                    f"{rows.stop - 1}; it must return the same columns for all rows"
                )
        gathered = {
            name: gather([(rows, found[name]) for rows, found in results], count) for name in names
        }
        return Outcome(gathered, errors)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute a batch of Ray Data.

        Args:
            batch: arrays by column; arrays of objects for rows of different shapes.

        Returns:
            The columns that are kept, those of the result, and ``error``: a text, empty where the
            row was computed. Of a row with an error, results are NaN, 0, empty text, or an array
            without elements where shapes differ.

        Raises:
            DataError: with ``on_error="raise"``, what is wrong with the first row that fails.
        """
        columns = {name: as_column(values) for name, values in batch.items()}
        outcome = self.predict(columns)
        if outcome.errors and self._raise:
            row = min(outcome.errors)
            raise DataError(f"row {row} of a batch: {outcome.errors[row]}")
        kept = {name: batch[name] for name in self._keep}
        found = {name: filled(column) for name, column in outcome.columns.items()}
        if clash := ({*kept} & {*found}) | ({ERROR} & {*kept, *found}):
            raise UsageError(f"two columns are called {min(clash)!r}; rename one in `postprocess`")
        count = count_rows(columns, "the batch")
        if self._raise:
            return {**kept, **found}
        return {
            **kept,
            **found,
            ERROR: np.array([outcome.errors.get(row, "") for row in range(count)], object),
        }

    def _compute(self, columns: Columns, start: int, stop: int) -> dict[str, Column]:
        rows: Columns = select(columns, start, stop)
        settings = self._settings
        if settings.preprocess is not None:
            rows = _applied(settings.preprocess, dict(rows), stop - start, "preprocess")
        found: Columns = self._run(rows, stop - start)
        if settings.postprocess is not None:
            found = _applied(settings.postprocess, dict(found), stop - start, "postprocess")
        return dict(found)

    def _run(self, columns: Columns, count: int) -> dict[str, Column]:
        pieces: dict[str, list[tuple[Sequence[int], Column]]] = {}
        for whole in self.feeder.groups(columns):
            for group in chunked(whole, self._rows):
                found = self.program.run(group.feeds, self._settings.method, self._settings.outputs)
                for name, value in found.items():
                    part = group.rows, self._cropped(name, value, group)
                    pieces.setdefault(name, []).append(part)
        return {name: gather(parts, count) for name, parts in pieces.items()}

    def _cropped(self, name: str, value: object, group: Group) -> Column:
        """Return an output without the rows and the lengths that were filled up."""
        fed = len(next(iter(group.feeds.values())))
        if not isinstance(value, np.ndarray) or not value.ndim or len(value) != fed:
            shape = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
            raise UsageError(
                f"output {name!r} is {shape} for {fed} rows: its first axis is not the rows, so "
                "it cannot be divided among them; leave it out with `outputs`"
            )
        rows: Array = value[: len(group.rows)]
        for axis, symbol in enumerate((self._axes.get(name) or ())[1:]):
            lengths = group.lengths.get(symbol) if isinstance(symbol, str) else None
            if lengths is None or axis >= rows.ndim - 1:
                continue
            parts = [(slice(None),) * axis + (slice(0, length),) for length in lengths]
            return [row[part] for row, part in zip(rows, parts, strict=True)]
        return rows


def _applied(function: Function, columns: dict[str, Any], count: int, name: str) -> Columns:
    returned: object = function(columns)
    if not isinstance(returned, Mapping):
        raise UsageError(
            f"`{name}` returned {type(returned).__name__}, and not a dict of columns by name"
        )
    found = {str(key): as_column(values) for key, values in returned.items()}
    if count_rows(found, f"what `{name}` returned") != count:
        raise DataError(
            f"`{name}` was called with {count} rows and returned {count_rows(found, name)}; it "
            "must return a value for each row"
        )
    return found


def filled(column: Column) -> Any:
    """Return a column for Ray: with values for rows that have none, and ragged rows as objects."""
    if isinstance(column, np.ndarray):
        return column
    known = [np.asarray(value) for value in column if value is not None]
    if known and all((a.shape, a.dtype) == (known[0].shape, known[0].dtype) for a in known):
        shape, dtype = known[0].shape, known[0].dtype
        missing = np.full(shape, np.nan, dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
        return np.stack([missing if value is None else np.asarray(value) for value in column])
    ragged = np.empty(len(column), object)
    empty = np.zeros((0,) * known[0].ndim, known[0].dtype) if known else np.zeros(0)
    for row, value in enumerate(column):
        ragged[row] = empty if value is None else np.asarray(value)
    return ragged


T = TypeVar("T")


def isolate(
    count: int, compute: Callable[[int, int], T]
) -> tuple[list[tuple[range, T]], dict[int, str]]:
    """Compute a batch; where that raises, compute its halves.

    Args:
        count: of the rows.
        compute: computes rows from `start` to `stop`.

    Returns:
        What was computed, with the numbers of its rows; and the message for each row that cannot
        be computed even alone. Each row is in one of the two.

    Raises:
        UsageError: that of `compute`: what the caller asked for is wrong, whatever the rows are.
    """
    results: list[tuple[range, T]] = []
    errors: dict[int, str] = {}
    waiting = [range(count)] if count else []
    while waiting:
        rows = waiting.pop()
        try:
            results.append((rows, compute(rows.start, rows.stop)))
        except (UsageError, PluginError):
            raise
        except Exception as error:  # noqa: BLE001  # any error may be due to a row
            if len(rows) == 1:
                errors[rows.start] = sentence(error)
                continue
            middle = (rows.start + rows.stop) // 2
            waiting += [range(middle, rows.stop), range(rows.start, middle)]
    return results, errors
