"""Calibration: runs a model on samples and returns the clipping range of each value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.meters import Counts, Meter
from narrowpass_analysis.values import attribute_errors, check_elements
from narrowpass_analysis.verification import judging_backends
from narrowpass_int8_sym.calibration.cache import (
    FORMAT,
    CacheEntry,
    CalibrationCache,
    PartialCalibration,
    stacked,
)
from narrowpass_int8_sym.calibration.digest import DataDigest, combined, model_digest
from narrowpass_int8_sym.calibration.observers import Calibrator, Observer, Range
from narrowpass_int8_sym.calibration.spread import SpreadSamples

if TYPE_CHECKING:
    from narrowpass import Backend, Program, Samples
    from narrowpass.runtime.backend import Feeds

Progress = Callable[[int, int], object]

AT_ONCE = 256
"""The largest number of values that are kept in one run."""

BYTES_AT_ONCE = 128 << 20
"""The largest size of all values that are kept in one run, as far as shapes are known.

Neither bound applies to backends that observe values in place.
"""

_UNKNOWN = 1 << 20
"""The assumed size in bytes of a value whose shape is not known."""

_log = logging.getLogger("narrowpass.int8-sym")


def calibrate(
    model: ir.Model,
    names: Sequence[str],
    samples: Samples,
    target: Backend | None,
    calibrator: Calibrator | str,
    *,
    symmetric: bool,
    progress: Progress | None = None,
    limit: int | None = None,
    cache: CalibrationCache | None = None,
) -> dict[str, Range]:
    """Return the clipping range of each value on samples.

    The samples are read once beforehand, for their number and their hash, and then once or twice,
    as the calibrator needs, for each group of values that are kept at once. `SpreadSamples` are
    read where they are, and what meters recorded there is added.

    Args:
        model: in float32; not changed.
        names: of values of its graph: inputs, what nodes compute, initializers; float tensors of
            any shape, which may vary from sample to sample.
        samples: feeds for the model. They must be the same each time.
        target: what runs the model; the reference evaluator where it is None or not available.
        calibrator: its name, or with options.
        symmetric: whether ranges must be as far below zero as above.
        progress: called with the number of samples done, and the total; a sample counts once for
            each round and group.
        limit: the largest number of samples, the first ones; None for all.
        cache: keeps ranges and the state of an interrupted calibration; None for no cache.

    Returns:
        Ranges by name, in the order of `names`. A value that is zero throughout, or never has an
        element, has one of 0 to 1, or -1 to 1.

    Raises:
        DataError: a value is NaN or infinite on a sample, and the message names both; the
            samples do not fit the model, are none, or differ from time to time.
        UsageError: a value that is not there, or is no float tensor; an unknown calibrator; a
            limit below 1.
        BackendError: the model cannot be run.
    """
    chosen = Calibrator.of(calibrator)
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1: {limit}")
    backend = judging_backends(target)[-1]
    wanted = tuple(dict.fromkeys(names))
    data = _scan(samples, limit, hashed=cache is not None)
    entry = None
    if cache is not None:
        key = _key(model, data, chosen, backend, symmetric=symmetric)
        entry = cache.entry(key)
    found = {name: entry.ranges[name] for name in wanted if name in entry.ranges} if entry else {}
    missing = [name for name in wanted if name not in found]
    partial = _resumable(entry, missing, chosen, data.count)
    groups = _groups(model, missing, partial, None if backend.observes else data.sizes)
    run = _Run(model, samples, backend, chosen, symmetric, data.count, entry, cache)
    report = _ProgressCounter(progress, len(groups) * chosen.rounds * data.count)
    for group in groups:
        found |= run.observe(group, partial, report)
        partial = None
    return {name: found[name] for name in wanted}


@dataclass(frozen=True)
class _Data:
    """The number, shapes and hash of the samples.

    Attributes:
        count: of the samples that are used.
        sizes: the shapes of the arrays of the first one.
        sha256: of all; empty where it was not requested.
    """

    count: int
    sizes: Mapping[str, tuple[int, ...]]
    sha256: str


def _scan(samples: Samples, limit: int | None, *, hashed: bool) -> _Data:
    if isinstance(samples, SpreadSamples):
        return _Data(*samples.scan(limit))
    digest = DataDigest()
    count, sizes = 0, {}
    for feeds in islice(samples, limit):
        if not count:
            sizes = {name: tuple(getattr(array, "shape", ())) for name, array in feeds.items()}
        count += 1
        if hashed:
            digest.add(feeds)
    return _Data(count, sizes, digest.hexdigest() if hashed else "")


def _key(
    model: ir.Model, data: _Data, calibrator: Calibrator, backend: Backend, *, symmetric: bool
) -> str:
    kind = "symmetric" if symmetric else "affine"
    return combined([FORMAT, model_digest(model), data.sha256, calibrator.key, kind, backend.name])


def _resumable(
    entry: CacheEntry | None, missing: Sequence[str], calibrator: Calibrator, count: int
) -> PartialCalibration | None:
    """Return the state of an interrupted calibration, if it can be resumed."""
    partial = entry.partial if entry else None
    if partial is None or not set(partial.names) <= set(missing):
        return None
    if partial.round >= calibrator.rounds or partial.done > count or not partial.names:
        return None
    return partial


def _groups(
    model: ir.Model,
    names: Sequence[str],
    partial: PartialCalibration | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
) -> list[tuple[str, ...]]:
    """Divide values into groups, so that the values kept in one run fit into memory.

    Args:
        model: of the values.
        names: of the values.
        partial: the state of a group that was interrupted.
        shapes: of inputs; None where the backend observes values in place.
    """
    groups: list[tuple[str, ...]] = [partial.names] if partial else []
    begun = set(groups[0]) if groups else set()
    if shapes is None:
        rest = tuple(name for name in names if name not in begun)
        return [*groups, rest] if rest else groups
    bound: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                bound[dim.value] = size
    known = {value.name: value.shape for value in model.graph.inputs}
    known |= {value.name: value.shape for node in model.graph for value in node.outputs}
    group: list[str] = []
    total = 0
    for name in names:
        if name in begun:
            continue
        size = _size(known.get(name), bound)
        if group and (len(group) == AT_ONCE or total + size > BYTES_AT_ONCE):
            groups.append(tuple(group))
            group, total = [], 0
        group.append(name)
        total += size
    return [*groups, tuple(group)] if group else groups


def _size(shape: ir.Shape | None, bound: Mapping[str, int]) -> int:
    if shape is None:
        return _UNKNOWN
    size = 4
    for dim in shape:
        size *= dim if isinstance(dim, int) else bound.get(dim.value or "", 1)
    return size


def _saw_elements(meter: Meter) -> bool:
    extremes = meter.extremes if isinstance(meter, Counts) else meter
    return extremes.nan or extremes.low <= extremes.high


class _ProgressCounter:
    """Counts samples, and reports progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None and count:
            self._progress(self._done, self._total)


@dataclass(frozen=True)
class _Run:
    """One call of `calibrate`."""

    model: ir.Model
    samples: Samples
    backend: Backend
    calibrator: Calibrator
    symmetric: bool
    count: int
    entry: CacheEntry | None
    cache: CalibrationCache | None

    def observe(
        self, names: tuple[str, ...], partial: PartialCalibration | None, report: _ProgressCounter
    ) -> dict[str, Range]:
        """Return the ranges of a group; resume from `partial`, if there is one."""
        observers, first, done = self._start_or_resume(names, partial)
        outputs = {value.name for value in self.model.graph.outputs}
        keep = tuple(name for name in names if name not in outputs)
        report.add(first * self.count + done)
        if isinstance(self.samples, SpreadSamples):
            return self._observe_spread(self.samples, observers, first, done, report)
        options = CompileOptions(keep=keep, observe=True, cache=False)
        with attribute_errors(self.backend, ""):
            compiled = self.backend.compile(Bundle({"main": self.model}), options)
        with compiled as program:
            for number in range(first, self.calibrator.rounds):
                if number > first:
                    done = 0
                    for observer in observers.values():
                        observer.next_round()
                for seen, feeds in self._samples_after(done):
                    self._observe_sample(program, observers, feeds, seen)
                    report.add()
                    self._save_state(observers, number, seen)
        ranges = {name: observer.result() for name, observer in observers.items()}
        if self.entry is not None:
            self.entry.save(ranges, None)
        return ranges

    def _observe_spread(
        self,
        samples: SpreadSamples,
        observers: Mapping[str, Observer],
        first: int,
        done: int,
        report: _ProgressCounter,
    ) -> dict[str, Range]:
        """Return the ranges of a group from samples that others go through."""
        for number in range(first, self.calibrator.rounds):
            if number > first:
                done = 0
                for observer in observers.values():
                    observer.next_round()
            meters = {name: observer.meter() for name, observer in observers.items()}
            asked = {name: meter for name, meter in meters.items() if meter is not None}
            if asked and done < self.count:
                for count, where, found in samples.observe(
                    self.model, str(self.backend), asked, self.count
                ):
                    for name, meter in found.items():
                        observers[name].merge(meter, where)
                    report.add(count)
            self._save_state(observers, number, self.count)
        ranges = {name: observer.result() for name, observer in observers.items()}
        if self.entry is not None:
            self.entry.save(ranges, None)
        return ranges

    def _start_or_resume(
        self, names: tuple[str, ...], partial: PartialCalibration | None
    ) -> tuple[dict[str, Observer], int, int]:
        """Return observers, the current round and the number of samples done in it."""
        if partial is not None:
            observers = self._observers(names)
            try:
                for index, observer in enumerate(observers.values()):
                    for _ in range(partial.round):
                        observer.next_round()
                    observer.restore(partial.extremes[index], partial.counts[index])
            except ValueError as error:
                _log.warning("the state of a calibration is ignored: %s", str(error))
            else:
                return observers, partial.round, partial.done
        return self._observers(names), 0, 0

    def _observers(self, names: tuple[str, ...]) -> dict[str, Observer]:
        return {name: self.calibrator.observer(name, symmetric=self.symmetric) for name in names}

    def _samples_after(self, done: int) -> Iterator[tuple[int, Feeds]]:
        """Yield the samples after the first `done`, numbered from 1."""
        seen = 0
        for seen, feeds in enumerate(islice(self.samples, self.count), start=1):
            if seen > done:
                yield seen, feeds
        if seen < self.count:
            raise DataError(
                f"{self.samples.source} had {self.count} samples at first, and then {seen}; "
                "they must be the same each time"
            )

    def _observe_sample(
        self, program: Program, observers: Mapping[str, Observer], feeds: Feeds, number: int
    ) -> None:
        meters = {name: observer.meter() for name, observer in observers.items()}
        asked = {name: meter for name, meter in meters.items() if meter is not None}
        where = f"sample {number} of {self.samples.source}"
        with attribute_errors(self.backend, where):
            program.observe(feeds, asked)
        if asked and not any(_saw_elements(meter) for meter in asked.values()):
            check_elements(feeds, {"": np.zeros((0,))}, where)
        for name, meter in asked.items():
            observers[name].collect(meter, where)

    def _save_state(self, observers: Mapping[str, Observer], number: int, seen: int) -> None:
        """Save the state every `CalibrationCache.every` samples, and at the end of a round."""
        if self.entry is None or self.cache is None:
            return
        if seen % self.cache.every and seen < self.count:
            return
        if seen == self.count and number == self.calibrator.rounds - 1:
            return  # the ranges follow
        states = stacked([observer.state() for observer in observers.values()])
        self.entry.save({}, PartialCalibration(tuple(observers), number, seen, *states))
