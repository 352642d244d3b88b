"""Keeping Python's garbage collector out of work that leaves no cyclic garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector.

    A model that is read, written or compiled is up to millions of objects that all stay: looking
    through them again and again for garbage takes a third of the time of reading a large one.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
