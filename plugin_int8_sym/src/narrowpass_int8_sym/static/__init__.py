"""Static quantization: activations have scales that were found on data beforehand."""

from __future__ import annotations

from narrowpass_int8_sym.static.parameters import Scheme
from narrowpass_int8_sym.static.quantization import Calibrated, Static

__all__ = ["Calibrated", "Scheme", "Static"]
