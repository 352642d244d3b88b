"""A pool of threads that works on where the system has no more threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that needs no thread.

    A limit on processes or memory may refuse each thread. Then fewer threads do the work, and the
    thread that submits it does, too.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let a thread of the pool call `fn`; where no thread starts, call it here."""
        call = _Call(fn, args, kwargs)
        try:
            return super().submit(call)
        except RuntimeError:
            # It is in the queue all the same, and perhaps no thread is there to take it.
            call.settle()
            return call.future


class _Call:
    """A call that happens once, though two threads may begin it."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.future: Future[Any] = Future()
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._taken = threading.Lock()

    def __call__(self) -> Any:
        """Call the function, in a thread of the pool, which has a future of its own for it."""
        if not self._taken.acquire(blocking=False):
            return None
        try:
            result = self._fn(*self._args, **self._kwargs)
        except BaseException as error:
            self.future.set_exception(error)
            raise
        self.future.set_result(result)
        return result

    def settle(self) -> None:
        """Call the function here, unless a thread of the pool has begun to."""
        try:
            self()
        except Exception:  # noqa: BLE001  # the future has it
            return
