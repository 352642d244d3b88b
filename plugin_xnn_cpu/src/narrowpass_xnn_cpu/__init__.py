"""The native CPU backend for narrowpass, on XNNPACK."""

from __future__ import annotations

from collections.abc import Iterable

from narrowpass import Backend, hookimpl


@hookimpl
def narrowpass_backends() -> Iterable[Backend]:
    """Give the backend ``xnn-cpu``."""
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

    return [XnnCpuBackend()]
