"""Garbage collection while a model is read or written."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector.

    A model is millions of objects that all stay: looking through them again and again for
    garbage takes a third of the time of reading a large one.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
