"""How matmuls are divided among threads, by BLAS or here."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from narrowpass_reference import blas_threads

SMALL = 4096
"""Rows up to which a second thread saves microseconds of a matmul: waiting for that thread takes
about as long where cores are free, and milliseconds where other processes use them."""

MOST = 4
"""Threads that have matrices of their own: each adds to the memory."""


def threads_for(size: int) -> AbstractContextManager[None]:
    """Return a context for a chain of small matmuls or factorizations, such as a loop over columns.

    Args:
        size: rows of the matrices: one thread up to `SMALL`, and as many as BLAS has above.
    """
    return blas_threads(1 if size <= SMALL else None)


def workers() -> int:
    """Return how many threads share work that is divided here: the cores, and `MOST` at most."""
    if hasattr(os, "sched_getaffinity"):
        return min(MOST, len(os.sched_getaffinity(0)))
    return min(MOST, os.cpu_count() or 1)
