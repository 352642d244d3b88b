"""Models in float16 or bfloat16: computed in float32 while they are quantized, and narrow after it.

Backends find an int8 operator by its form: DequantizeLinear and QuantizeLinear with scales in
float32 around an operator in float32. So what becomes int8 has that form in a half-precision model,
too, with a Cast on its border, and calibration, smoothing and limits see float32 throughout.
Everything else has the type again that it had.
"""

from __future__ import annotations

from narrowpass_int8_sym.halves.downcast import narrow, stay_wide, stay_wide_after
from narrowpass_int8_sym.halves.upcast import has_halves, widen

__all__ = ["has_halves", "narrow", "stay_wide", "stay_wide_after", "widen"]
