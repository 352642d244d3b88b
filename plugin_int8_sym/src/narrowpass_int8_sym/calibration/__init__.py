"""Calibration: clipping ranges of values from data."""

from __future__ import annotations

from narrowpass_int8_sym.calibration.cache import CalibrationCache
from narrowpass_int8_sym.calibration.observers import Calibrator, Observer, Range
from narrowpass_int8_sym.calibration.ranges import calibrate

__all__ = ["CalibrationCache", "Calibrator", "Observer", "Range", "calibrate"]
