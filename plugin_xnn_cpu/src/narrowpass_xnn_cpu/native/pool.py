"""Thread pools, one for each number of threads, shared by all programs of that number."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from narrowpass.errors import UsageError
from narrowpass_xnn_cpu.native.library import extension

_MOST = 1024


class ThreadPool:
    """Workers that several programs share. `shared` gives one; it ends with its last user.

    Attributes:
        threads: how many threads compute, the calling one included.
        handle: pthreadpool's handle; NULL for one thread.
    """

    def __init__(self, threads: int) -> None:
        ffi, lib = extension().ffi, extension().lib
        self.threads = threads
        self.process = os.getpid()
        self.handle: Any = ffi.NULL
        if threads > 1:
            self.handle = lib.pthreadpool_create(threads)
            if self.handle == ffi.NULL:
                raise UsageError(f"{threads} threads could not be started; ask for fewer")
            weakref.finalize(self, _destroy, lib, self.handle, self.process).atexit = False


def _destroy(lib: Any, handle: Any, process: int) -> None:
    # The threads did not come along into a forked child: nothing there can be joined.
    if process == os.getpid():
        lib.pthreadpool_destroy(handle)


def default_threads() -> int:
    """Give the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def shared(threads: int | None) -> ThreadPool:
    """Give the pool of this process with `threads` threads; None for `default_threads`.

    Raises:
        UsageError: a number of threads that makes no sense, or that cannot be started.
    """
    if threads is None:
        threads = default_threads()
    if isinstance(threads, bool) or not 1 <= threads <= _MOST:
        raise UsageError(f"threads must be a number from 1 to {_MOST}, not {threads!r}")
    return _shared.get(threads)


class _Pools:
    """The pools of this process that are in use."""

    def __init__(self) -> None:
        self._renew()
        # Another thread may hold the lock while this one forks, and threads stay behind.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakValueDictionary[int, ThreadPool] = weakref.WeakValueDictionary()

    def get(self, threads: int) -> ThreadPool:
        with self._lock:
            pool = self._pools.get(threads)
            if pool is None:
                pool = self._pools[threads] = ThreadPool(threads)
            return pool


_shared = _Pools()
