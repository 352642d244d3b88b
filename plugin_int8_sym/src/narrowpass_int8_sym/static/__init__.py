"""Static quantization: scales of activations come from calibration data."""

from __future__ import annotations

from narrowpass_int8_sym.static.parameters import Scheme
from narrowpass_int8_sym.static.quantization import CalibrationResult, StaticQuantizer

__all__ = ["CalibrationResult", "Scheme", "StaticQuantizer"]
