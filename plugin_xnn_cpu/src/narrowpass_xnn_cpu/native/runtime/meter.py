"""Observers of values for calibration, which a tape updates while it runs."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from narrowpass.runtime.meters import Counts, Extremes, Meter
from narrowpass_planning.plan.executor import Pool
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension

_NONE = 0x7FFFFFFF, -0x80000000
"""Initial minimum and maximum of keys, before any element."""
_INFINITE = 0x7F800000
"""The key of infinity."""


class NativeMeter:
    """Observes one value between `begin` and `end`."""

    def __init__(self) -> None:
        self._ffi, self._lib = extension().ffi, extension().lib
        self._meter = self._ffi.new("np_meter *")

    def params(self, count: int) -> Any:
        """Return the parameters of ``NP_OBSERVE``, which refer to this object."""
        return calls.parameters("NP_OBSERVE", (count, self._meter))

    def begin(self, meter: Meter, scratch: np.ndarray[Any, Any]) -> None:
        """Observe the value in the next runs.

        Args:
            meter: receives the minimum and maximum, or a histogram; it must live until `end`.
            scratch: memory from `scratch_for`.
        """
        native = self._meter
        native.low, native.high = _NONE
        native.scratch = self._ffi.cast("uint32_t *", self._ffi.from_buffer(scratch))
        if isinstance(meter, Counts):
            native.kind = self._lib.NP_METER_COUNTS
            native.folded, native.bins, native.below = meter.folded, meter.bins, meter.below
            native.scale, native.zeros = meter.scale, meter.zeros
            native.counts = self._ffi.cast("int64_t *", self._ffi.from_buffer(meter.counts))
        else:
            native.kind = self._lib.NP_METER_EXTREMES

    def end(self, meter: Meter) -> None:
        """Write the observed extremes and counts to `meter`, and stop observing."""
        native = self._meter
        native.kind = self._lib.NP_METER_OFF
        extremes = meter.extremes if isinstance(meter, Counts) else meter
        if isinstance(meter, Counts):
            meter.zeros = native.zeros
        if (native.low, native.high) != _NONE:
            _include(extremes, native.low, native.high)


def _include(extremes: Extremes, low: int, high: int) -> None:
    if high > _INFINITE or low < ~_INFINITE:
        extremes.nan = True
    else:
        extremes.include(_number(low), _number(high))


def _number(key: int) -> float:
    """Return the float of a key, an int32 with the same order as floats; see ``np_meter``."""
    bits = key ^ 0x7FFFFFFF if key < 0 else key
    (number,) = struct.unpack("<f", struct.pack("<i", bits))
    return float(number)


def scratch_for(meters: Iterable[Meter], pool: Pool) -> np.ndarray[Any, Any]:
    """Return scratch memory for all threads that is large enough for any of the meters."""
    bins = max((meter.bins for meter in meters if isinstance(meter, Counts)), default=0)
    return np.empty(extension().lib.np_meter_words(bins) * pool.threads, np.uint32)
