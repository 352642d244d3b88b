"""Half precision: a float16 or bfloat16 model is upcast to float32, quantized, and restored.

Backends match an int8 operator by its Q/DQ pattern: DequantizeLinear and QuantizeLinear with
float32 scales around a float32 operator. So nodes that become int8 have that pattern in a
half-precision model, too, with Casts around it, and calibration and smoothing work on float32. All
other nodes get their own type back.
"""

from __future__ import annotations

from narrowpass_int8_sym.half_precision.downcast import (
    downcast,
    keep_epilogue_float32,
    keep_float32,
)
from narrowpass_int8_sym.half_precision.upcast import has_half_precision, upcast

__all__ = ["downcast", "has_half_precision", "keep_epilogue_float32", "keep_float32", "upcast"]
