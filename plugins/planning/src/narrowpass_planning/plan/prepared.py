"""The fast path of a run whose feeds have the types and shapes of the last ones.

It binds addresses and calls the tape once. A small model computes for a microsecond or two. All
else that a run does, such as checks of feeds and the choice of outputs and sizes, depends on the
types and shapes of the feeds alone, and is reused while these stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.executor import NativeCall, Pool
from narrowpass_planning.plan.partition import Partition

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


class PreparedRun:
    """A run of one bound partition, prepared for feeds of fixed types and shapes.

    Args:
        partition: that runs.
        bound: its last binding.
        copied: the outputs that are copied; see `BoundPartition.copied`.
        outputs: names of the method's outputs, in order; the partition computes each.
        feeds: dense arrays that were checked, and have run.
        workspace: memory of intermediate values.
        pool: the threads.
    """

    def __init__(
        self,
        partition: Partition,
        bound: BoundPartition,
        copied: Sequence[tuple[str, Array]],
        outputs: Sequence[str],
        feeds: Mapping[str, Array],
        workspace: Workspace,
        pool: Pool,
    ) -> None:
        binds = dict(bound.fed)
        self._partition, self._bound, self._version = partition, bound, bound.version
        self._feeds = [(name, x.dtype, x.shape, binds.get(name)) for name, x in feeds.items()]
        last = [name for name, _ in copied]
        order = [*(name for name in partition.outputs if name not in last), *last]
        self._outputs = None if order == [*outputs] else tuple(outputs)
        self._copied = tuple(copied)
        self._workspace = workspace
        self._pool = pool
        self._process = os.getpid()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """Run it.

        Returns:
            The outputs; None, with nothing computed, where feeds have other types or shapes, or
            where the binding has changed.

        Raises:
            BackendError: a step that failed.
        """
        if type(feeds) is not dict or len(feeds) != len(self._feeds):
            return None
        given = []
        for name, dtype, shape, binds in self._feeds:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            if binds:
                given.append((binds, array))
        if self._process != os.getpid():
            return None
        with self._workspace.entered():
            bound = self._bound
            if self._partition.bound is not bound or bound.version != self._version:
                return None
            results = bound.run_again(given, self._copied, self._pool)
        if self._outputs is None:
            return results
        return {name: results[name] for name in self._outputs}

    def replay(self) -> Replay | None:
        """Return the run for a caller without Python, until the partition runs for other shapes.

        Returns:
            None where the tape needs Python, or an output is strided.
        """
        call = self._bound.tape.call(self._pool)
        if call is None:
            return None
        results = {
            name: ReplayResult(name, dtype, shape, tuple(binds), None)
            for name, shape, dtype, binds in self._bound.direct()
        }
        for name, source in self._copied:
            if not source.flags.c_contiguous:
                return None
            results[name] = ReplayResult(name, source.dtype, source.shape, (), source)
        order = [*results] if self._outputs is None else self._outputs
        return Replay(
            tuple(
                ReplayFeed(name, dtype, shape, tuple(binds or ()))
                for name, dtype, shape, binds in self._feeds
            ),
            tuple(results[name] for name in order),
            call,
            (self._bound, self._workspace.memory),
        )
