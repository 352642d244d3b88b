"""Statistics of each channel of a value: from data, or estimated from weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError
from narrowpass_analysis.values import check_elements, run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends
from narrowpass_int8_sym.channels.operand import ChannelAxis, ChannelConstant
from narrowpass_int8_sym.channels.regions import Region

if TYPE_CHECKING:
    from narrowpass import Backend, Samples


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of the channels of a value on data; float64 [C] each.

    Attributes:
        count: the number of elements of each channel.
        low: the least element of each, 0 or less.
        high: the largest of each, 0 or more.
        mean: of the elements of each.
        square: the mean of their squares.
    """

    count: int
    low: Array
    high: Array
    mean: Array
    square: Array

    def divided(self, factors: Array) -> ChannelStatistics:
        """Return the statistics of the value with each channel divided by its factor."""
        return ChannelStatistics(
            self.count,
            self.low / factors,
            self.high / factors,
            self.mean / factors,
            self.square / factors**2,
        )

    def merged(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics over the data of both."""
        total = max(self.count + other.count, 1)
        share = other.count / total
        return ChannelStatistics(
            self.count + other.count,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + share * (other.mean - self.mean),
            self.square + share * (other.square - self.square),
        )


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of the channels of a value, separately for even and odd samples.

    The halves are the folds of cross-validation.

    Attributes:
        halves: two; one where there is only one sample.
    """

    halves: tuple[ChannelStatistics, ...]

    @property
    def all(self) -> ChannelStatistics:
        """The statistics over all samples."""
        first, *rest = self.halves
        return first.merged(rest[0]) if rest else first

    def divided(self, factors: Array) -> SplitStatistics:
        """Return the statistics of the value with each channel divided by its factor."""
        return SplitStatistics(tuple(half.divided(factors) for half in self.halves))


def observe_channels(
    model: ir.Model,
    channel_axes: Sequence[ChannelAxis],
    samples: Samples,
    target: Backend | None,
    limit: int | None = None,
) -> dict[str, SplitStatistics]:
    """Run a model on samples, and return statistics of the channels of values.

    Memory is that of the values of a sample, `narrowpass_analysis.values.AT_ONCE` values at a
    time; the samples are gone through once for each such group.

    Args:
        model: in float32; not changed.
        channel_axes: values of its graph, of any shape that may vary but for the number of
            channels.
        samples: feeds for the model.
        target: what runs the model; the reference evaluator where it is None or not available.
        limit: the largest number of samples, the first ones.

    Returns:
        By the value's name. A value without elements has channels of zeros.

    Raises:
        DataError: an element is NaN or infinite, and the message names value and sample; or the
            number of channels varies.
        BackendError: the model cannot be run.
    """
    backend = judging_backends(target)[-1]
    named = {channel_axis.value.name or "": channel_axis for channel_axis in channel_axes}
    found: dict[str, SplitStatistics] = {}
    for group in split_groups(list(named)):
        collected = {name: _Statistics(name, named[name]) for name in group}
        runs = run_on_samples(model, group, samples, backend, limit)
        for number, feeds, values in runs:
            where = f"sample {number} of {samples.source}"
            check_elements(feeds, values, where)
            _add_sample(feeds, values, collected, where)
            del values  # before the next ones are computed
        found.update((name, each.result()) for name, each in collected.items())
    return found


def _add_sample(
    feeds: Mapping[str, Any],
    values: Mapping[str, Any],
    collected: Mapping[str, _Statistics],
    where: str,
) -> None:
    for name, each in collected.items():
        try:
            each.add(values[name], where)
        except DataError as error:
            raise DataError(f"{error}{_given_so(feeds)}") from error


def _given_so(feeds: Mapping[str, Any]) -> str:
    """Name the inputs that are NaN or infinite themselves; text to add to a message."""
    floats = {
        name: array
        for name, array in feeds.items()
        if np.asarray(array).dtype.kind == "f" or np.asarray(array).dtype.name == "bfloat16"
    }
    bad = [repr(name) for name, array in floats.items() if not np.isfinite(array).all()]
    return f"; so is input {', '.join(bad)}" if bad else ""


class _Statistics:
    """Collects the statistics of a value; samples go to the two halves in turn."""

    def __init__(self, name: str, channel_axis: ChannelAxis) -> None:
        self._name, self._axis = name, channel_axis.axis
        self._halves: list[ChannelStatistics] = []
        self._turn = 0

    def add(self, array: Array, where: str) -> None:
        """Add the value on a sample."""
        channels = array.shape[self._axis]
        if self._halves and len(self._halves[0].low) != channels:
            raise DataError(
                f"value {self._name!r} has {channels} channels on {where}, and "
                f"{len(self._halves[0].low)} before"
            )
        rows = np.moveaxis(array, self._axis, -1).reshape(-1, channels)
        if not np.isfinite(rows).all():
            raise DataError(f"value {self._name!r} on {where} is NaN or infinite")
        seen = _channels(rows)
        if self._turn < len(self._halves):
            seen = self._halves[self._turn].merged(seen)
            self._halves[self._turn] = seen
        else:
            self._halves.append(seen)
        self._turn = 1 - self._turn

    def result(self) -> SplitStatistics:
        """Return the statistics of both halves."""
        return SplitStatistics(tuple(self._halves))


def _channels(rows: Array) -> ChannelStatistics:
    """Return the statistics of the columns of a matrix."""
    count = len(rows)
    squares = np.einsum("rc,rc->c", rows, rows, dtype=np.float64)
    return ChannelStatistics(
        count,
        rows.min(axis=0, initial=0).astype(np.float64),
        rows.max(axis=0, initial=0).astype(np.float64),
        rows.sum(axis=0, dtype=np.float64) / max(count, 1),
        squares / max(count, 1),
    )


_DEVIATIONS = 4.0
"""The largest magnitude of a channel, in standard deviations, where there is no data."""


StatisticsOf = Callable[[Region, Array], Mapping[ir.Value, SplitStatistics]]
"""Returns the channel statistics of the values that the sinks of a region read, after their
division by the cumulative factors."""


def statistics_from_data(
    model: ir.Model,
    regions: Sequence[Region],
    samples: Samples,
    target: Backend | None,
    limit: int | None = None,
) -> StatisticsOf:
    """Return statistics of the channels on samples; see `observe_channels`."""
    channel_axes = [channel_axis for region in regions for _, channel_axis in region.sinks]
    found = observe_channels(model, channel_axes, samples, target, limit)

    def statistics_of(region: Region, factors: Array) -> Mapping[ir.Value, SplitStatistics]:
        return {
            channel_axis.value: found[channel_axis.value.name or ""].divided(factors)
            for _, channel_axis in region.sinks
        }

    return statistics_of


def statistics_from_weights(region: Region, factors: Array) -> Mapping[ir.Value, SplitStatistics]:
    """Estimate the largest magnitude of a channel as that of the weights that compute it.

    Where only normalizations produce the value, it is estimated as |scale| + |bias|.
    """
    weights = [operand for operand in region.sources if len(operand.dims) > 1]
    found = [_largest(operand) for operand in weights or region.sources]
    largest = np.max(found, axis=0) if weights else np.sum(found, axis=0)
    square = (largest / _DEVIATIONS) ** 2
    both = ChannelStatistics(1, -largest, largest, 0 * largest, square)
    positive = ChannelStatistics(1, 0 * largest, largest, largest / _DEVIATIONS, square)
    return {
        channel_axis.value: SplitStatistics(
            (positive if _is_positive(channel_axis.value) else both,)
        )
        for _, channel_axis in region.sinks
    }


def _largest(operand: ChannelConstant) -> Array:
    """Return the largest magnitude in each channel of a constant."""
    array = np.abs(operand.read().astype(np.float64))
    if operand.groups > 1:
        grouped = array.reshape(operand.groups, -1, array.shape[1], array[0, 0].size)
        return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
    rows = np.moveaxis(array, operand.axis, 0).reshape(operand.channels, -1)
    return np.asarray(rows.max(axis=1))


def _is_positive(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in ("Relu", "Clip", "Abs")
