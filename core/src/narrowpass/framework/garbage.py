"""Keeping Python's garbage collector out of work that leaves no cyclic garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Let the cyclic garbage collector rest.

    A model that is opened and compiled is many objects that all stay. The collector would look
    through them, and all modules that are imported, for some tens of milliseconds.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
