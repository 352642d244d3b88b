"""A backend of ten operators, with kernels of numpy."""

from __future__ import annotations

from narrowpass import Backend, hookimpl


@hookimpl
def narrowpass_backends() -> list[Backend]:
    """Register the backend ``numpy``."""
    from numpy_backend.backend import NumpyBackend

    return [NumpyBackend()]
