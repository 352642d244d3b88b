"""How matmuls are divided among threads, by BLAS or here."""

from __future__ import annotations

from contextlib import AbstractContextManager

from narrowpass.runtime.processors import usable_processors
from narrowpass_reference import blas_threads

SMALL = 4096
"""K up to which weights are quantized with one thread. GPTQ is thousands of matmuls of 16 to 128
columns: a second thread saves microseconds of each, and waiting for it costs as much where cores
are free, and milliseconds where other processes use them."""

MOST = 4
"""Threads that have matrices of their own: each adds to the memory."""


def threads_for(inner: int) -> AbstractContextManager[None]:
    """Return a context in which BLAS has the threads that quantize weights soonest.

    Args:
        inner: K of the weights: one thread up to `SMALL`, and as many as BLAS has above.
    """
    return blas_threads(1 if inner <= SMALL else None)


def workers() -> int:
    """Return how many threads share work that is divided here: `MOST`, or fewer processors."""
    return min(MOST, usable_processors())
