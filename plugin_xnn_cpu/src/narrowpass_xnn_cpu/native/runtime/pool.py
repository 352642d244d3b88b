"""Thread pools, one for each number of threads, shared by the programs of the process."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from narrowpass.errors import UsageError
from narrowpass.runtime.processors import usable_processors
from narrowpass_ir.arguments import Uncopied
from narrowpass_xnn_cpu.native.library import extension

_MOST = 1024
_SHORT_SPIN = 500_000
"""Nanoseconds for which workers spin-wait after a run, for one that follows at once."""
_LONG_SPIN = 2_000_000
"""The same of a pool with `spin`."""
_PATIENCE = 20.0
"""Seconds in which a thread must begin."""


class ThreadPool(Uncopied):
    """Worker threads, which end when the last program that uses them is freed; see `shared`.

    Attributes:
        threads: the number of threads that compute, including the calling one.
        handle: pthreadpool's handle; NULL for one thread.
        workers: the workers' handle; NULL for one thread.
    """

    _instead = "programs that are compiled again share it"

    def __init__(self, threads: int, *, spin: bool) -> None:
        ffi, lib = extension().ffi, extension().lib
        self.threads = threads
        self.spin = spin
        self.process = os.getpid()
        self.handle: Any = ffi.NULL
        self.workers: Any = ffi.NULL
        if threads > 1:
            self.workers = lib.np_workers_new(threads - 1, _LONG_SPIN if spin else _SHORT_SPIN)
            if self.workers == ffi.NULL:
                raise UsageError(f"{threads} threads could not be started; use fewer")
            workers = _Workers(lib, self.workers)
            weakref.finalize(self, workers.end).atexit = False
            self.handle = workers.handle = lib.np_workers_begin_pool(self.workers)
            started = self.handle != ffi.NULL and all(map(workers.start, range(1, threads)))
            if not started:
                raise UsageError(f"{threads} threads could not be started; use fewer")


class _Begin:
    """What `threading.Thread.start` waits for, without an end in a thread that lacks memory.

    CPython raises MemoryError in the new thread before it sets the event, and nobody hears of it:
    https://github.com/python/cpython/issues/140746. Nor can it wait for a Condition, as an Event
    does: a thread that lacks memory when it leaves one never releases its lock.
    """

    def __init__(self) -> None:
        self._begun = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Return whether the thread has begun."""
        return self._begun

    def set(self) -> None:
        """Say, in the new thread, that it has begun; once."""
        self._begun = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as long as a thread may take to begin; only its starter does, once.

        Raises:
            RuntimeError: it did not.
        """
        if not self._gate.acquire(timeout=_PATIENCE if timeout is None else timeout):
            raise RuntimeError("a thread was started and did not begin")
        return True

    def _at_fork_reinit(self) -> None:
        """Reset the lock in a forked child, where `threading` calls this."""
        # As `threading` does with its own: a lock has no public way to be reset.
        self._gate._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001


class _Workers:
    """Starts and ends the threads of a pool.

    They are threads of Python, since ``pthread_create`` in the extension would need a newer C
    library than the wheel is built for.
    """

    def __init__(self, lib: Any, workers: Any) -> None:
        self.handle: Any = None
        self._lib, self._workers = lib, workers
        self._started = self._running = 0
        # Numbers of threads that began, or were given up: whoever is first, the thread or its
        # starter, decides.
        self._decided: set[int] = set()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def start(self, number: int) -> bool:
        """Start a thread; return whether the system allowed that."""
        name = f"narrowpass-{number}"
        thread = threading.Thread(target=self._work, args=(number,), name=name, daemon=True)
        # There is no public way to bound what `start` waits for.
        thread._started = _Begin()  # type: ignore[attr-defined]  # noqa: SLF001
        with self._lock:
            self._started += 1
            self._running += 1
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            with self._lock:
                if number in self._decided:
                    return True
                self._decided.add(number)
                self._started -= 1
                self._running -= 1
            return False
        return True

    def _work(self, number: int) -> None:
        with self._lock:
            if number in self._decided:
                return
            self._decided.add(number)
        self._lib.np_worker_main(self._workers)
        with self._lock:
            self._running -= 1
            last = not self._running
        if last:
            self._lib.np_workers_free(self._workers)

    def end(self) -> None:
        """Let the threads end; the last one frees their shared state."""
        # A forked child has none of the threads.
        if self._process != os.getpid():
            return
        if self.handle:
            self._lib.pthreadpool_destroy(self.handle)
        with self._lock:  # no thread frees the state while this call uses it
            self._lib.np_workers_stop(self._workers)
        if not self._started:
            self._lib.np_workers_free(self._workers)


def shared(threads: int | None, *, spin: bool = False) -> ThreadPool:
    """Return the pool of this process with `threads` threads; None for `usable_processors`.

    Args:
        threads: the number of threads that compute, including the calling one.
        spin: whether workers spin-wait for two milliseconds after each run.

    Raises:
        UsageError: an invalid number of threads, or one that cannot be started.
    """
    if threads is None:
        threads = usable_processors()
    if isinstance(threads, bool) or not 1 <= threads <= _MOST:
        raise UsageError(f"threads must be a number from 1 to {_MOST}, not {threads!r}")
    return _shared.get(threads, spin=spin)


class _Pools:
    """The pools of this process that are in use."""

    def __init__(self) -> None:
        self._reset()
        # A fork copies a lock that another thread may hold, and none of the threads.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakValueDictionary[tuple[int, bool], ThreadPool] = (
            weakref.WeakValueDictionary()
        )

    def get(self, threads: int, *, spin: bool) -> ThreadPool:
        with self._lock:
            pool = self._pools.get((threads, spin))
            if pool is None:
                pool = self._pools[threads, spin] = ThreadPool(threads, spin=spin)
            return pool


_shared = _Pools()
