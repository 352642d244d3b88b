"""How many threads numpy's matmuls use."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def blas_threads(most: int | None) -> Iterator[None]:
    """Let numpy's BLAS compute with `most` threads at the most, within this context.

    The BLAS has one number for the whole process: where several contexts are open at a time, the
    least of their numbers counts, and what it was before comes back with the end of the last one.

    Args:
        most: number of threads; None for as many as the BLAS would use.
    """
    if most is None:
        yield
        return
    limits = _limits()
    limits.add(most)
    try:
        yield
    finally:
        limits.remove(most)


class _Limits:
    """The contexts that are open, and the libraries that numpy may call."""

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController

        self._libraries: list[Any] = list(
            ThreadpoolController().select(user_api="blas").lib_controllers
        )
        self._renew()
        # Another thread may hold the lock while this one forks, and its contexts stay behind.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._open: list[int] = []
        self._before: list[int] = []

    def add(self, most: int) -> None:
        """Open a context."""
        with self._lock:
            if not self._open:
                self._before = [library.get_num_threads() for library in self._libraries]
            self._open.append(most)
            self._set()

    def remove(self, most: int) -> None:
        """Close a context."""
        with self._lock:
            if most in self._open:  # not in a child that was forked meanwhile
                self._open.remove(most)
            self._set()

    def _set(self) -> None:
        for library, before in zip(self._libraries, self._before, strict=False):
            library.set_num_threads(min([before, *self._open]))


@functools.cache
def _limits() -> _Limits:
    return _Limits()
