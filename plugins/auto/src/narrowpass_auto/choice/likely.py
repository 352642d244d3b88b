"""The error of samples that nobody has run, by the errors of those that were."""

from __future__ import annotations

import math
import statistics
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass_auto.measure.evaluation import Evaluation

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
