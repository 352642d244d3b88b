"""A run as code in C repeats it: addresses to bind, and one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.plan.executor import NativeCall

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ReplayFeed:
    """An input of a run.

    Attributes:
        name: of the input.
        dtype: of the array that was fed.
        shape: likewise.
        binds: the buffers that lie in it, each with the offset of its first byte; empty where
            nothing reads its elements.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    binds: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ReplayResult:
    """An output of a run.

    Attributes:
        name: of the output.
        dtype: of its elements.
        shape: of the array.
        binds: the buffers that lie in it, as `ReplayFeed.binds`.
        source: where its elements are after the call, dense; None where they are computed in it.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    binds: tuple[tuple[int, int], ...]
    source: Array | None


@dataclass(frozen=True)
class Replay:
    """A run for feeds of fixed types and shapes, for a caller without Python.

    The caller binds the buffers of feeds and results to their memory, calls, and copies the results
    that have a source. Its program must not run meanwhile; a run of the program ends its validity.

    Attributes:
        feeds: in the order of the run that is repeated.
        results: in the order of the method's outputs.
        call: the tape.
        kept: what lives as long as this is used.
    """

    feeds: tuple[ReplayFeed, ...]
    results: tuple[ReplayResult, ...]
    call: NativeCall
    kept: tuple[Any, ...]
