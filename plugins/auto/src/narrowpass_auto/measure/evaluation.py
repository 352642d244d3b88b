"""Whole models on samples: how far outputs are from those of the model as it was, and times.

From the errors on these samples follows what the error on as many others will hardly exceed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.calibration.samples import Samples
    from narrowpass.runtime.backend import Backend, Feeds, Outputs, Program
    from narrowpass_auto.limits import Limit, Meter


_KEPT_BYTES = 256 << 20
"""Outputs of the model as it was that are kept; those of more samples are computed again."""


@dataclass(frozen=True)
class Evaluation:
    """What a run of a model on samples showed.

    Attributes:
        error: of the outputs, in the metric of the limit.
        noise: of the worst output, over its power.
        ratio: of the time of a run to that of the model as it was, taken in turns; None where
            runs were not timed.
        bytes: of constants.
        errors: of each sample.
        expected: the error to expect of other samples, where margins say so; else 0.
        rows: that were compared, of the output that has the fewest.
    """

    error: float
    noise: float
    ratio: float | None
    bytes: int
    errors: tuple[float, ...] = ()
    expected: float = 0.0
    rows: int = 0


class Evaluator:
    """Compares models with one, on samples.

    Args:
        model: as it was; not changed.
        samples: what models are run on.
        limit: has the metric.
        backend: runs them.

    Raises:
        BackendError: it cannot run the model.
        DataError: a sample does not fit.
    """

    def __init__(self, model: ir.Model, samples: Samples, limit: Limit, backend: Backend) -> None:
        self._backend, self._samples, self._limit, self._model = backend, samples, limit, model
        self._kept: list[Outputs] = []
        self._program: Program | None = None
        kept = 0
        for feeds in samples:
            outputs = self._right.run(feeds)
            kept += sum(getattr(array, "nbytes", 0) for array in outputs.values())
            if kept > _KEPT_BYTES:
                break
            self._kept.append({name: copied(array) for name, array in outputs.items()})

    @property
    def _right(self) -> Program:
        """The program of the model as it was, compiled anew after `close`."""
        if self._program is None:
            self._program = compiled(self._backend, self._model)
        return self._program

    def close(self) -> None:
        """Free the program of the model as it was until the next measurement."""
        if self._program is not None:
            self._program.close()
            self._program = None

    def measure(self, model: ir.Model, seconds: float) -> tuple[Meter, float | None]:
        """Return what measured the error of a model, and the ratio of its time; see `Evaluation`.

        Args:
            model: rewritten.
            seconds: to time runs for; 0 for no time.
        """
        meter = self._limit.meter()
        with compiled(self._backend, model) as program:
            first: Feeds | None = None
            for feeds, right in self._pairs():
                first = feeds if first is None else first
                meter.add(right, program.run(feeds))
            assert first is not None  # noqa: S101  # samples are never empty
            ratio = _ratios([self._right, program], first, seconds)[0] if seconds else None
        return meter, ratio

    def compare(self, models: Sequence[ir.Model], seconds: float) -> list[float]:
        """Return the ratio of the time of each model, all in turns: what else runs slows all alike.

        Args:
            models: rewritten; all are compiled at once.
            seconds: to time runs for, for each model.
        """
        feeds = next(iter(self._samples))
        with ExitStack() as stack:
            programs = [stack.enter_context(compiled(self._backend, model)) for model in models]
            return _ratios([self._right, *programs], feeds, seconds * len(models))

    def _pairs(self) -> Iterator[tuple[Feeds, Outputs]]:
        for number, feeds in enumerate(self._samples):
            kept = number < len(self._kept)
            yield feeds, self._kept[number] if kept else self._right.run(feeds)


def copied(value: Any) -> Any:
    """Return a copy of an array, whose memory the next run may use; other values as they are."""
    return value.copy() if isinstance(value, np.ndarray) else value


def compiled(backend: Backend, model: ir.Model) -> Program:
    """Return the program of a model, without packed weights on disk."""
    return backend.compile(Bundle({"main": model}), CompileOptions(cache=False))


_FEWEST, _MOST = 5, 200


def _ratios(programs: Sequence[Program], feeds: Feeds, seconds: float) -> list[float]:
    """Return the times of runs over those of the first program, in turns for some seconds."""
    for each in programs:
        each.run(feeds)
    times: list[list[float]] = [[] for _ in programs]
    start = time.perf_counter()
    while len(times[0]) < _FEWEST or (
        len(times[0]) < _MOST and time.perf_counter() - start < seconds
    ):
        # The order changes: who runs first finds the other's data in the caches.
        first = len(times[0]) % len(programs)
        for index in (*range(first, len(programs)), *range(first)):
            begin = time.perf_counter()
            programs[index].run(feeds)
            times[index].append(time.perf_counter() - begin)
    right, *others = map(_quick, times)
    return [other / right for other in others]


def _quick(times: Sequence[float]) -> float:
    """Return the time that a tenth of the runs stay below: other programs only add to times."""
    return sorted(times)[len(times) // 10]


FEWEST = 3
"""Samples from which the spread of errors is estimated."""

_CONFIDENCE = 0.99
"""Of a hundred sets of as many other samples, so many are to be within what is likely."""

_SHARE = 0.8


def likely_error(found: Evaluation, *, is_mean: bool) -> float:
    """Return the error that as many other samples hardly exceed.

    Of a metric whose error is that of the worst sample, the logarithms of errors are taken as
    normal: the worst of 8 others is within 3.0 standard deviations above their mean in 99 of 100
    cases, that of 32 within 3.4. Of one whose error is a mean, it is what the mean of as many
    others is within as often. With too few samples to say, a quarter is added.

    Args:
        found: of a run.
        is_mean: whether the metric's error is a mean.
    """
    errors, error = found.errors, max(found.error, found.expected)
    if len(errors) < FEWEST or not all(map(math.isfinite, errors)):
        return error / _SHARE
    if is_mean:
        # Both means have the variance of a sample over their number, and so has the difference.
        deviation = statistics.stdev(errors) * math.sqrt(2 / len(errors))
        return error + NormalDist().inv_cdf(_CONFIDENCE) * deviation
    logs = [math.log(error) for error in errors if error > 0.0]
    if len(logs) < FEWEST:
        return error / _SHARE
    deviations = NormalDist().inv_cdf(_CONFIDENCE ** (1 / len(errors)))
    return max(error, math.exp(statistics.fmean(logs) + deviations * statistics.stdev(logs)))
