"""Observers collect statistics of a value over samples, and compute its clipping range.

One class for each calibrator. Those with a histogram go through the data twice: the first round
finds the least and the largest element, the second fills bins between them. Their state has a fixed
size, and all but `MovingAverage` compute the same range, bit for bit, however the elements are
divided into arrays.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.meters import Counts, Extremes
from narrowpass_int8_sym.calibration import entropy, l2
from narrowpass_int8_sym.calibration.histogram import CalibrationHistogram
from narrowpass_int8_sym.calibration.spread import add_counts
from narrowpass_ir.arguments import suggest

if TYPE_CHECKING:
    from narrowpass import Histogram
    from narrowpass.runtime.meters import Meter
    from narrowpass_int8_sym.calibration.histogram import Array

Name = Literal["minmax", "moving-average", "percentile", "l2", "entropy"]

AFFINE_LEVELS = 256
"""Levels of a range that is affine: -128 to 127."""

FOLDED_LEVELS = 128
"""Levels of the magnitudes in a range that is symmetric: 0 to 127."""

SMALLEST = 256 * float(np.finfo(np.float32).tiny)
"""A range that is narrower has no scale that is a normal float32 number."""


@dataclass(frozen=True)
class Range:
    """A clipping range. Zero is always in it, because int8 must represent it exactly.

    Attributes:
        low: finite, 0 or less.
        high: finite, 0 or more.
        histogram: of the elements, for reports; None where the calibrator has none. Ranges are
            equal without regard to it.
    """

    low: float
    high: float
    histogram: Histogram | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (-math.inf < self.low <= 0.0 <= self.high < math.inf):
            raise DataError(f"a range must be finite and hold zero: {self.low} to {self.high}")

    @classmethod
    def of(cls, low: float, high: float, *, symmetric: bool) -> Range:
        """Return the range that holds two numbers and zero, and has a usable width.

        Where both are zero, or so small that the scale would not be a normal float32 number, or
        low is above high, because there are no elements: 0 to 1, or -1 to 1.
        """
        low, high = (min(low, 0.0), max(high, 0.0)) if low <= high else (0.0, 0.0)
        if max(-low, high) < SMALLEST:
            low, high = 0.0, 1.0
        if symmetric:
            high = max(-low, high)
            low = -high
        return cls(low + 0.0, high)  # no -0.0


@dataclass(frozen=True)
class Calibrator:
    """A calibrator with its options.

    Attributes:
        name: which one.
        percentile: of ``percentile``: how much of the elements the range holds, in percent.
        bins: of ``percentile``, ``l2`` and ``entropy``: bins of the histogram.
        averaging: of ``moving-average``: the weight of each further sample.
        outliers: of ``l2``: the share of elements that may be left out where a wide gap separates
            them from the rest; 0 for none.
    """

    name: Name
    percentile: float = 99.99
    bins: int = 2048
    averaging: float = 0.01
    outliers: float = 1 / 2048

    def __post_init__(self) -> None:
        if self.name not in _OBSERVERS:
            raise UsageError(
                f"no calibrator {self.name!r}{suggest(self.name, _OBSERVERS)}; "
                f"there are {', '.join(get_args(Name))}"
            )
        if not 0 < self.percentile <= 100:
            raise UsageError(f"percentile must be above 0, and 100 at most: {self.percentile}")
        if not AFFINE_LEVELS <= self.bins <= 1 << 16:
            raise UsageError(f"bins must be from {AFFINE_LEVELS} to {1 << 16}: {self.bins}")
        if not 0 < self.averaging <= 1:
            raise UsageError(f"averaging must be above 0, and 1 at most: {self.averaging}")
        if not 0 <= self.outliers < 1:
            raise UsageError(f"outliers must be from 0 to 1: {self.outliers}")

    @classmethod
    def of(cls, given: Calibrator | str) -> Calibrator:
        """Return the calibrator of a name, with its default options.

        Raises:
            UsageError: there is none of that name.
        """
        return given if isinstance(given, Calibrator) else cls(given)  # type: ignore[arg-type]

    @property
    def rounds(self) -> int:
        """The number of passes over the samples."""
        return _OBSERVERS[self.name].rounds

    @property
    def key(self) -> str:
        """The name with the options that ranges depend on, for the key of a cache."""
        relevant = [option.name for option in fields(self) if option.name in self._options]
        return ",".join([self.name, *(f"{name}={getattr(self, name)!r}" for name in relevant)])

    @property
    def _options(self) -> tuple[str, ...]:
        return _OBSERVERS[self.name].options

    def observer(self, value: str, *, symmetric: bool) -> Observer:
        """Return an observer of a value.

        Args:
            value: its name, for messages.
            symmetric: whether its range must be as far below zero as above.
        """
        return _OBSERVERS[self.name](value, self, symmetric=symmetric)


class Observer(abc.ABC):
    """Collects the statistics of a value that its clipping range is computed from.

    Attributes:
        rounds: the number of passes over the samples that it needs.
        options: the fields of `Calibrator` that it depends on.
    """

    rounds: ClassVar[int] = 1
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, value: str, calibrator: Calibrator, *, symmetric: bool) -> None:
        self._value, self._calibrator, self._symmetric = value, calibrator, symmetric
        self._low, self._high = math.inf, -math.inf

    def observe(self, array: Array, sample: str) -> None:
        """Add the elements of the value on a sample.

        Args:
            array: of any shape, also with no elements; float16, bfloat16, float32 or float64,
                all converted to float32.
            sample: names the sample, for messages.

        Raises:
            DataError: an element is NaN or infinite, or the samples of the second round are not
                those of the first.
            UsageError: it is no array of floating point numbers.
        """
        meter = self.meter()
        if meter is not None:
            meter.add(array, self._where(sample))
            self.collect(meter, sample)

    def meter(self) -> Meter | None:
        """Return the meter for the value on the next sample; None where none is needed."""
        return Extremes()

    def collect(self, meter: Meter, sample: str) -> None:
        """Add the measurements of a meter from `meter`.

        Args:
            meter: after one sample.
            sample: names the sample, for messages.

        Raises:
            DataError: see `observe`.
        """
        if not isinstance(meter, Extremes):
            raise TypeError(f"{meter} is no meter of this round")
        if meter.nan:
            raise DataError(f"{self._where(sample)} is NaN; no range can be taken from it")
        if meter.low > meter.high:
            return
        if math.isinf(meter.low) or math.isinf(meter.high):
            raise DataError(f"{self._where(sample)} is infinite; no range can be taken from it")
        self._extremes(meter.low, meter.high)

    def merge(self, meter: Meter, part: str) -> None:
        """Add the measurements of a meter that recorded a part of the samples elsewhere.

        Args:
            meter: of the kind, and with the bins, of `meter`.
            part: names that part of the samples, for messages.

        Raises:
            DataError: see `observe`.
            UsageError: the range depends on the order of the samples.
        """
        self.collect(meter, part)

    def _where(self, sample: str) -> str:
        return f"value {self._value!r} on {sample}"

    @abc.abstractmethod
    def _extremes(self, low: float, high: float) -> None:
        """Add the least and the largest element of a sample that is not empty."""

    def next_round(self) -> None:
        """End a round: all samples were observed once, and will be observed again."""
        raise AssertionError(f"{type(self).__name__} has one round")

    def result(self) -> Range:
        """Return the clipping range."""
        return Range.of(self._low, self._high, symmetric=self._symmetric)

    def state(self) -> tuple[Array, Array]:
        """Return the collected statistics.

        Returns:
            The extremes, float64 of shape [2], and counts, int64 of shape [0] or, with a
            histogram, [bins + 1]: the zeros are the last.
        """
        return np.array([self._low, self._high]), np.zeros(0, np.int64)

    def restore(self, extremes: Array, counts: Array) -> None:
        """Restore the result of `state` of another observer in the same round.

        Raises:
            ValueError: `state` cannot have returned this.
        """
        low, high = float(extremes[0]), float(extremes[1])
        nothing = (low, high) == (math.inf, -math.inf)
        if not nothing and not -math.inf < low <= high < math.inf:
            raise ValueError(f"extremes {low} and {high}")
        self._low, self._high = low, high


class MinMax(Observer):
    """The least and the largest element."""

    def _extremes(self, low: float, high: float) -> None:
        self._low, self._high = min(self._low, low), max(self._high, high)


class MovingAverage(Observer):
    """The extremes of each sample, averaged in the order of the samples.

    The first sample's extremes are taken as they are; each further one moves them by `averaging`
    times the difference, as PyTorch documents it for ``MovingAverageMinMaxObserver``. So the
    result depends on the order of the samples, and on what a sample is: an array that `observe` is
    given. One without elements does not count.
    """

    options: ClassVar[tuple[str, ...]] = ("averaging",)

    def merge(self, meter: Meter, part: str) -> None:
        """Refuse: see `Observer.merge`."""
        raise UsageError(
            "moving-average depends on the order of the samples, which several machines do not "
            "keep; choose minmax, percentile, l2 or entropy"
        )

    def _extremes(self, low: float, high: float) -> None:
        if self._low > self._high:
            self._low, self._high = low, high
            return
        self._low += self._calibrator.averaging * (low - self._low)
        self._high += self._calibrator.averaging * (high - self._high)


class HistogramObserver(MinMax):
    """The base class of the observers with a histogram."""

    rounds = 2
    options: ClassVar[tuple[str, ...]] = ("bins",)

    def __init__(self, value: str, calibrator: Calibrator, *, symmetric: bool) -> None:
        super().__init__(value, calibrator, symmetric=symmetric)
        self._histogram: CalibrationHistogram | None = None
        self._second = False

    def meter(self) -> Meter | None:
        """Return a meter of extremes in the first round, of bins in the second; see `Observer`."""
        if not self._second:
            return super().meter()
        return None if self._histogram is None else self._histogram.meter

    def collect(self, meter: Meter, sample: str) -> None:
        """See `Observer.collect`."""
        if self._histogram is not None and meter is self._histogram.meter:
            self._histogram.check(self._where(sample))
        else:
            super().collect(meter, sample)

    def merge(self, meter: Meter, part: str) -> None:
        """See `Observer.merge`."""
        if self._histogram is None or not isinstance(meter, Counts):
            super().merge(meter, part)
            return
        add_counts(self._histogram.meter, meter)
        self._histogram.check(self._where(part))

    def next_round(self) -> None:
        """Create the histogram over the range that the first round found."""
        self._second = True
        # Else there are no elements, or all are zero.
        if self._low <= self._high and max(-self._low, self._high) >= SMALLEST:
            self._histogram = CalibrationHistogram(
                self._low, self._high, self._calibrator.bins, folded=self._symmetric
            )

    def state(self) -> tuple[Array, Array]:
        """Return the collected statistics; see `Observer.state`."""
        extremes, _ = super().state()
        counts = np.zeros(self._calibrator.bins + 1, np.int64)
        if self._histogram is not None:
            counts[:-1], counts[-1] = self._histogram.counts, self._histogram.zeros
        return extremes, counts

    def restore(self, extremes: Array, counts: Array) -> None:
        """Restore the result of `state`; see `Observer.restore`."""
        super().restore(extremes, counts)
        if counts.dtype != np.int64 or counts.shape != (self._calibrator.bins + 1,):
            raise ValueError(f"counts are {counts.dtype}{list(counts.shape)}")
        if (counts < 0).any():
            raise ValueError("a count is negative")
        if not self._second:
            return
        self.next_round()
        if self._histogram is not None:
            self._histogram.meter.counts[:] = counts[:-1]
            self._histogram.meter.zeros = int(counts[-1])

    def result(self) -> Range:
        """Return the clipping range that the calibrator chooses, within the extremes."""
        histogram = self._histogram
        if histogram is None or not histogram.counts.any():
            return super().result()
        below, above = self._clipping_bins(histogram)
        high = above * histogram.width
        if self._symmetric:
            high = min(high, max(-self._low, self._high))
            found = Range.of(-high, high, symmetric=True)
        else:
            low = max(-below * histogram.width, min(self._low, 0.0))
            found = Range.of(low, min(high, max(self._high, 0.0)), symmetric=False)
        return replace(found, histogram=histogram.compact(found.low, found.high))

    @abc.abstractmethod
    def _clipping_bins(self, histogram: CalibrationHistogram) -> tuple[int, int]:
        """Return the number of bins below and above zero in the clipping range."""

    @property
    def _levels(self) -> int:
        return FOLDED_LEVELS if self._symmetric else AFFINE_LEVELS


class Percentile(HistogramObserver):
    """The clipping range that holds a percentage of the elements.

    An affine range leaves out half of the rest at each end, a symmetric one the largest
    magnitudes. Each end is the outer edge of the bin with the element of that rank (numpy's
    ``inverted_cdf``), so it is at most one bin too far out and, but for rounding, never too far in.
    """

    options: ClassVar[tuple[str, ...]] = ("percentile", "bins")

    def _clipping_bins(self, histogram: CalibrationHistogram) -> tuple[int, int]:
        below, counts = histogram.below, histogram.counts
        inside = Fraction(str(self._calibrator.percentile)) / 100
        tail = (1 - inside) / 2
        # Zeros lie at the edge between the sides.
        ranks = np.cumsum(np.concatenate([counts[:below], [histogram.zeros], counts[below:]]))
        total = int(ranks[-1])

        def place(share: Fraction) -> int:
            rank = max(math.ceil(share * total), 1)
            return int(np.searchsorted(ranks, rank))

        first = 0 if self._symmetric else max(below - place(tail), 0)
        last = max(place(inside if self._symmetric else 1 - tail) - below, 0)
        return first, last


class L2(HistogramObserver):
    """The clipping range with the least squared error; see `l2.clipping_range`."""

    options: ClassVar[tuple[str, ...]] = ("bins", "outliers")

    def _clipping_bins(self, histogram: CalibrationHistogram) -> tuple[int, int]:
        return l2.clipping_range(histogram, self._levels, self._calibrator.outliers)


class Entropy(HistogramObserver):
    """The clipping range with the least divergence; see `entropy.clipping_range`."""

    def _clipping_bins(self, histogram: CalibrationHistogram) -> tuple[int, int]:
        return entropy.clipping_range(histogram, self._levels)


_OBSERVERS: dict[str, type[Observer]] = {
    "minmax": MinMax,
    "moving-average": MovingAverage,
    "percentile": Percentile,
    "l2": L2,
    "entropy": Entropy,
}
