"""The only code that calls into C: XNNPACK's operators, our own kernels, tapes and thread pools.

Arguments that XNNPACK only asserts in debug builds, or ignores, are checked here before the call.
Status codes become exceptions.
"""

from __future__ import annotations

from narrowpass_xnn_cpu.native.library import unavailable

__all__ = ["unavailable"]
