"""A run whose feeds are as the last ones were: no more than binding addresses and one call.

A small model computes for a microsecond or two. What a run does beside that, such as checks of
feeds, choice of outputs and sizes, follows from the types and shapes of the feeds. It is the same
as in the run before where these are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.bound import Bound
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition

Array = np.ndarray[Any, Any]


class Prepared:
    """Runs one partition for feeds of certain types and shapes.

    Args:
        partition: whose steps they are.
        bound: it, as it ran last.
        copied: the outputs that are copies; see `Bound.copied`.
        outputs: names of the method's outputs, in order; the partition computes each.
        feeds: what was checked, and has run: dense arrays.
        workspace: what it computes in.
        pool: the threads.
    """

    def __init__(
        self,
        partition: Partition,
        bound: Bound,
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
            The outputs; None where feeds have other types or shapes, or where anything else has
            changed: then nothing was computed.

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
