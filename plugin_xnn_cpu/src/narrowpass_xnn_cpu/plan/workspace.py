"""Memory that partitions compute in: one at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from narrowpass.framework.arguments import Uncopied
from narrowpass_xnn_cpu.native.tape import aligned

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.plan.bound import Bound


class Workspace(Uncopied):
    """Memory for inner values and scratch, as large as the largest of its users needs.

    Nothing in it outlives the run of a partition. Who runs one has `entered` it: partitions of one
    method share it since they run one after the other, methods that share it take turns.

    Attributes:
        memory: the bytes.
        generation: changes with `memory`.
    """

    _instead = "programs that are compiled again share it"

    def __init__(self) -> None:
        self.memory = aligned(0)
        self.generation = 0
        self._needs: weakref.WeakKeyDictionary[Bound, int] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._process = os.getpid()

    def entered(self) -> contextlib.AbstractContextManager[Any]:
        """Give a context that keeps others out; the same thread may enter again."""
        if self._process != os.getpid():
            # Another thread of the parent may have held the lock when this process was forked.
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock

    def require(self, user: Bound, size: int) -> None:
        """Say what a new user needs; users that are gone need nothing any more.

        Raises:
            BackendError: more bytes than the machine has.
        """
        self._needs[user] = size
        most = max(self._needs.values())
        if most > self.size or 2 * most < self.size:
            self.memory = aligned(0)  # before the other: both need not fit
            self.generation += 1
            # Some more: what grows by a row in each run must not move each time.
            self.memory = aligned(most + most // 8)

    @property
    def size(self) -> int:
        """Bytes, without those that kernels may read beyond."""
        return int(self.memory.nbytes - aligned(0).nbytes)
