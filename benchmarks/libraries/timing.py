"""Times of a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median(function: Callable[[], object]) -> float:
    """Return the median of 15 calls in milliseconds, after one call that is not counted."""
    function()
    times = []
    for _ in range(15):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)
