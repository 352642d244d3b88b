"""A lock that a forked child has anew."""

from __future__ import annotations

import contextlib
import os
import threading


class ForkLock:
    """A reentrant lock for the threads of one process.

    In a forked child it is free: the thread that held it there was not copied.
    """

    def __init__(self) -> None:
        self._locks = {os.getpid(): threading.RLock()}

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return the lock of this process, to enter."""
        return self._locks.setdefault(os.getpid(), threading.RLock())
