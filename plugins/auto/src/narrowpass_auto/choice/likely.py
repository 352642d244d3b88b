"""The error of samples that nobody has run, by the errors of those that were."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass_auto.measure.evaluation import Evaluation

FEWEST = 3
"""Samples from which the spread of errors is estimated."""

_DEVIATIONS = 2.0
_SHARE = 0.8


def likely_error(found: Evaluation, *, is_mean: bool) -> float:
    """Return the error that other samples hardly exceed.

    Of a metric whose error is that of the worst sample it is what one sample in 44 is above: two
    standard deviations more than the mean of logarithms, since errors of samples are about
    log-normal. Of one whose error is a mean, it is what the mean of as many other samples is as
    seldom above. With too few samples to say, a quarter is added.

    Args:
        found: of a run.
        is_mean: whether the metric's error is a mean.
    """
    errors, error = found.errors, max(found.error, found.expected)
    if len(errors) < FEWEST or not all(map(math.isfinite, errors)):
        return error / _SHARE
    if is_mean:
        # Both means have the variance of a sample over their number, and so has the difference.
        return error + _DEVIATIONS * statistics.stdev(errors) * math.sqrt(2 / len(errors))
    logs = [math.log(error) for error in errors if error > 0.0]
    if len(logs) < FEWEST:
        return error / _SHARE
    spread = statistics.stdev(logs)
    return max(error, math.exp(statistics.fmean(logs) + _DEVIATIONS * spread))
