"""The only code that calls into C: XNNPACK's operators, kernels of ours, tapes and thread pools.

Everything that XNNPACK asserts, or takes silently and computes wrongly, is checked here before
the call. Statuses become exceptions.
"""

from __future__ import annotations

from narrowpass_xnn_cpu.native.library import unavailable

__all__ = ["unavailable"]
