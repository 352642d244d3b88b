"""The names of `narrowpass.bundle.publish` that stood here, for programs that import them so."""

from __future__ import annotations

import importlib

_MOVED = [
    "ASIDE",
    "MARKER",
    "TEMPORARY",
    "exchange",
    "fresh_name",
    "list_siblings",
    "locked",
    "remove",
    "remove_leftovers",
    "temporary",
]
__all__ = list(_MOVED)


def __getattr__(name: str) -> object:
    """Return a name from where it is now; this library itself uses none of them."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("narrowpass.bundle.publish"), name)
