"""Parameters of quantization to 16 bits and of fake quantization, for C."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.weights_cache import pointer


def quantize16(count: int, scale: float, zero_point: int, *, is_signed: bool) -> Any:
    """Return the parameters of ``NP_QUANTIZE16``, ``NP_DEQUANTIZE16`` and ``NP_FAKE_QUANTIZE``.

    Args:
        count: number of elements.
        scale: scale of the integers.
        zero_point: zero point of the integers.
        is_signed: whether they are int16, else uint16.
    """
    least = -(1 << 15) if is_signed else 0
    bounds = least - zero_point, least + (1 << 16) - 1 - zero_point
    fields = count, 0, scale, *bounds, zero_point, is_signed
    return calls.parameters("NP_QUANTIZE16", fields)


def fake_quantize_channels(count: int, inner: int, table: Array) -> Any:
    """Return the parameters of ``NP_FAKE_QUANTIZE_CHANNELS``: per-channel quantize and dequantize.

    Args:
        count: number of elements; not 0.
        inner: contiguous elements of a channel.
        table: float32 [3, channels]: scales, and clipping ranges in units of the scales; it must
            outlive the parameters.
    """
    ffi = extension().ffi
    rows, channels = table.shape
    if rows != 3 or table.dtype != np.float32 or count % (inner * channels):
        raise BackendError(f"{channels} channels of {inner} do not fit {count} elements")
    fields = count, channels, inner, *(pointer(ffi, row) for row in table)
    return calls.parameters("NP_FAKE_QUANTIZE_CHANNELS", fields)
