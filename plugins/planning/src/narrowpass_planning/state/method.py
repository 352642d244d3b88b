"""A method whose caches are appended to in place, and its run for one more token."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import BackendError, UsageError
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_ir.state import State
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.step import Array
from narrowpass_planning.state.buffers import Buffers
from narrowpass_planning.state.fed import Fed, FeedForm
from narrowpass_planning.state.merged import MergedRun

if TYPE_CHECKING:
    from narrowpass_planning.program.method import Method


class Token:
    """A run of a bound partition on feeds of fixed shapes, whose caches stay bound.

    Args:
        partition: that ran.
        bound: its binding.
        buffers: of the caches, which are bound until those of another session are.
        feeds: that ran, without caches.
        copied: see `BoundPartition.copied`.
        rows: that each run appends.
    """

    def __init__(
        self,
        partition: Partition,
        bound: BoundPartition,
        buffers: Buffers,
        feeds: Mapping[str, Array],
        copied: Sequence[tuple[str, Array]],
        rows: int,
    ) -> None:
        self._partition, self._bound, self._version = partition, bound, bound.version
        # The tape has addresses only: a session that is gone, or reset, frees its buffers.
        self._buffers: weakref.ref[Buffers] | None = weakref.ref(buffers)
        self._copied, self.rows = copied, rows
        binds = dict(bound.fed)
        self._caches = {
            name: (array.shape, binds.get(name, ())) for name, array in buffers.arrays.items()
        }
        self._feeds = [
            (FeedForm.of(name, array, elastic=_is_mask(partition, name)), binds.get(name, ()))
            for name, array in feeds.items()
        ]

    def run(
        self, feeds: Mapping[str, Any], buffers: Buffers, total: int, pool: Pool
    ) -> dict[str, Array] | None:
        """Run it; the caller has entered the workspace.

        Args:
            feeds: without caches; that of the number of rows among them.
            buffers: of the caches.
            total: rows with those that the run appends.
            pool: the threads.

        Returns:
            The outputs; None, with nothing computed, where anything but the elements of feeds, the
            columns of masks, and the memory of caches differs from the last run.
        """
        bound = self._bound
        if total > buffers.room or len(feeds) != len(self._feeds):
            return None
        if self._partition.bound is not bound or bound.version != self._version:
            return None
        given = []
        for form, buffers_of in self._feeds:
            array = feeds.get(form.name)
            if not form.fits(array, total):
                return None
            if buffers_of:
                given.append((buffers_of, array))
        known = None if self._buffers is None else self._buffers()
        if buffers is not known and not self._bind(buffers):
            return None
        return bound.run_again(given, self._copied, pool)

    def _bind(self, buffers: Buffers) -> bool:
        """Bind the caches of another session; return whether they have as many rows of room."""
        arrays = buffers.arrays
        if {name: shape for name, (shape, _) in self._caches.items()} != {
            name: array.shape for name, array in arrays.items()
        }:
            return False
        self._buffers = None  # an interrupt in between leaves buffers of no session bound
        for name, (_, binds) in self._caches.items():
            self._bound.tape.bind_all(binds, arrays[name])
        self._buffers = weakref.ref(buffers)
        return True


def _is_mask(partition: Partition, name: str) -> bool:
    """Return whether an input has a column for each row, and changes nothing else by its shape."""
    slot = partition.inputs.get(name)
    return slot is not None and slot in partition.elastic and not partition.reads_shape_of(slot)


class AppendingMethod:
    """A method compiled so that its caches are appended to in place.

    Args:
        method: compiled from the rewritten model.
        checker: of the feeds without states.
        states: that it takes; those with an axis are appended to.
        updated: states of fixed shape that it yields.
        fed: what it takes of its feeds.

    Attributes:
        caches: names of the inputs of the caches.
        outputs: names of the outputs that are no state.
        token: the prepared run of one session, for one more token.
        merged: the prepared run of several sessions.
        never_merges: whether binding showed that no tape computes several sessions.
    """

    def __init__(
        self,
        method: Method,
        checker: FeedChecker,
        states: Sequence[State],
        updated: Sequence[State],
        fed: Fed,
    ) -> None:
        self.fed = fed
        self.method = method
        self.checker = checker
        self.states, self.updated = tuple(states), tuple(updated)
        self.caches = [state.input for state in states if state.axis is not None]
        fixed = {state.output for state in updated}
        self.outputs = tuple(name for name in method.outputs if name not in fixed)
        self.token: Token | None = None
        self.merged: MergedRun | None = None
        self.never_merges = False

    @functools.cached_property
    def masks(self) -> tuple[str, ...]:
        """Names of the compiled method's inputs that have a column for each row of the caches."""
        return tuple(
            name
            for partition in self.method.partitions
            for name in partition.inputs
            if _is_mask(partition, name)
        )

    @functools.cached_property
    def grown(self) -> frozenset[str]:
        """Names of the feeds that have a column for each row of the caches."""
        return frozenset((*self.masks, *self.fed.grown))

    @property
    def merges(self) -> bool:
        """Whether runs of several sessions can be one, as far as is known."""
        return not self.never_merges and self._merges

    @functools.cached_property
    def _merges(self) -> bool:
        """Whether one partition runs, whose steps stay.

        A mask that is computed has other columns in each run.
        """
        if not self.method.alone:
            return False
        (partition,) = self.method.partitions
        masks = {partition.inputs[name] for name in self.masks}
        return set(self.method.outputs) == set(partition.outputs) and partition.elastic <= masks

    def check_defaults(self, feeds: Mapping[str, Any]) -> None:
        """Check that no input is fed whose default was compiled into the method.

        Raises:
            UsageError: one is.
        """
        fed = sorted(self.method.defaults.intersection(feeds))
        if fed:
            raise UsageError(
                f"input {fed[0]!r} has a default, which a session whose caches are appended to in "
                "place keeps; leave it out, or remove the initializer of that name from the model"
            )

    def check_rows(self, feeds: Mapping[str, Any]) -> None:
        """Check that the last run appended as many rows as its feeds say.

        Raises:
            BackendError: it did not, so that positions and masks were others.
        """
        rows, found = self.fed.new_rows(feeds), self.appended_rows()
        if rows is not None and rows != found:
            raise BackendError(f"{found} rows were appended to caches, where the feeds have {rows}")

    def appended_rows(self) -> int:
        """Return the rows that the last run appended.

        Raises:
            BackendError: to some caches more than to others.
        """
        rows = {p.appended_rows() for p in self.method.partitions} - {0}
        if len(rows) > 1:
            raise BackendError(
                f"caches of one method get different numbers of rows: {sorted(rows)}"
            )
        return rows.pop() if rows else 0

    def prepare(self, buffers: Buffers, feeds: Mapping[str, Any]) -> None:
        """Prepare the next token's run, after a run on these feeds."""
        self.token = None
        partitions = self.method.partitions
        if not self.method.alone or any(type(x) is not np.ndarray for x in feeds.values()):
            return
        (partition,) = partitions
        bound = partition.bound
        copied = None if bound is None else bound.copied()
        if bound is None or copied is None or set(self.method.outputs) != set(partition.outputs):
            return
        masks = {slot for name, slot in partition.inputs.items() if _is_mask(partition, name)}
        if partition.elastic - masks:
            return  # a mask that is computed has other columns in each run
        rows = partition.appended_rows()
        self.token = Token(partition, bound, buffers, feeds, copied, rows)
