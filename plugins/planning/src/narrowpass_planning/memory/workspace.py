"""Workspaces: memory for the intermediate values and scratch of partitions that run in turns."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

import numpy as np

from narrowpass_ir.arguments import Uncopied
from narrowpass_planning.memory.allocator import Array, allocate_bytes, current_allocator


class Workspace(Uncopied):
    """Memory for intermediate values and scratch, of the size that its largest user needs.

    Nothing in it outlives the run of a partition. A caller that runs one has `entered` it:
    partitions of one method share it, one after the other; methods that share it take turns.

    Its memory comes from the `current_allocator` of the thread that creates it.

    Args:
        extra_bytes: padding at the end, which kernels may read.

    Attributes:
        memory: the bytes.
        generation: changes with `memory`.
    """

    _instead = "programs that are compiled again share it"

    def __init__(self, extra_bytes: int = 0) -> None:
        self._allocator = current_allocator()
        self._extra = extra_bytes
        self.memory: Array = np.empty(extra_bytes, np.uint8)
        self.generation = 0
        self._needs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._process = os.getpid()

    def entered(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that excludes other threads; the same thread may enter again."""
        if self._process != os.getpid():
            # Another thread of the parent may have held the lock when this process was forked.
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock

    def require(self, user: object, size: int) -> None:
        """Reserve the bytes of a user; users that were garbage-collected do not count.

        Raises:
            BackendError: more bytes than the machine has.
        """
        self._needs[user] = size
        most = max(self._needs.values())
        if most > self.size or 2 * most < self.size:
            self.memory = np.empty(self._extra, np.uint8)  # before the other: both need not fit
            self.generation += 1
            if most:
                # Some more: values that grow by a row in each run must not reallocate each time.
                size = most + most // 8 + self._extra
                self.memory = allocate_bytes(self._allocator, size)

    @property
    def size(self) -> int:
        """Bytes, without the padding."""
        return int(self.memory.nbytes - self._extra)
