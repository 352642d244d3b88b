"""Whether XNNPACK has a kernel for this processor, found out by trying to create the operator."""

from __future__ import annotations

import functools
import math

from narrowpass_xnn_cpu.native.library import extension


@functools.cache
def has_float16_gemm() -> bool:
    """Return whether XNNPACK has a GEMM of float16 here: on x86-64 it needs AVX2 and F16C."""
    ffi, lib = extension().ffi, extension().lib
    handle = ffi.new("xnn_operator_t *")
    kernel, null = ffi.new("uint16_t[1]"), ffi.NULL
    status = lib.xnn_create_fully_connected_nc_f16(
        1, 1, 1, 1, kernel, null, -math.inf, math.inf, 0, null, handle
    )
    if not status:
        lib.xnn_delete_operator(handle[0])
    return bool(status != lib.xnn_status_unsupported_hardware)
