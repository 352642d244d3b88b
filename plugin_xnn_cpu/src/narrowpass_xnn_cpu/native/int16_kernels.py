"""Parameters of conversions between float32 and integers of 16 bits, for C."""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native.library import extension


def int16(count: int, scale: float, zero_point: int, *, is_signed: bool) -> Any:
    """Give the parameters of ``NP_QUANTIZE16``, ``NP_DEQUANTIZE16`` and ``NP_FAKE_QUANTIZE``.

    Args:
        count: how many elements there are.
        scale: of the integers.
        zero_point: of the integers.
        is_signed: whether they are int16, and not uint16.
    """
    least = -(1 << 15) if is_signed else 0
    bounds = least - zero_point, least + (1 << 16) - 1 - zero_point
    fields = count, scale, *bounds, zero_point, is_signed
    return extension().ffi.new("struct np_int16_params *", fields)
