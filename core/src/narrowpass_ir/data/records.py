"""The names of `narrowpass.bundle.manifest` that stood here, for programs that import them so."""

from __future__ import annotations

import importlib

_MOVED = ["Matching", "UnfitError", "read_record", "shown"]
__all__ = list(_MOVED)


def __getattr__(name: str) -> object:
    """Return a name from where it is now; this library itself uses none of them."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("narrowpass.bundle.manifest"), name)
