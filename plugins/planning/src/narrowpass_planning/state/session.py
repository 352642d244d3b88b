"""Sessions that append to caches in place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.runtime.requests import choose_method, choose_outputs
from narrowpass.state.plain import check_values, dtype_of, initial, states_of
from narrowpass.state.session import Runner, Session
from narrowpass_planning.plan.bound import Sizes
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.lanes import NoLanesError, UnevenLanesError
from narrowpass_planning.plan.step import Array
from narrowpass_planning.state.buffers import Buffers, Cache, rows_of
from narrowpass_planning.state.errors import CacheFullError
from narrowpass_planning.state.merged import Lane, MergedRun
from narrowpass_planning.state.method import AppendingMethod
from narrowpass_planning.state.narrow import FLOAT32, file_arrays, read_file_arrays
from narrowpass_planning.state.operators import LENGTH

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds, Outputs
    from narrowpass_ir.state import State
    from narrowpass_planning.program.method import Method


class Appender(Runner, Protocol):
    """What a session needs of a program whose methods append to caches; see `PlannedProgram`."""

    @property
    def extra_bytes(self) -> int:
        """Bytes that kernels may read behind a buffer."""

    @property
    def forking(self) -> AbstractContextManager[object]:
        """The lock of the buffers that sessions share."""

    def threads(self) -> Pool:
        """Return the executor's threads."""

    def naming(self, method: Method) -> AbstractContextManager[None]:
        """Add the method's name to errors of the computation within the block."""

    def run_method(self, method: Method, feeds: Feeds, wanted: Sequence[str]) -> Outputs:
        """Run a compiled method on feeds that were checked."""


@dataclass(eq=False)
class _Mark:
    """The state of a session, and whether its buffers are held for it."""

    buffers: Buffers | None
    fixed: dict[str, Array]
    length: int
    held: bool = False


class AppendingSession(Session):
    """A session whose caches are buffers with room for more rows.

    Args:
        program: that runs.
        states: that it keeps.
        methods: those that append to caches, by name.
        cache_dtype: of the elements of caches; see `narrow.CACHE_DTYPES`.
    """

    _program: Appender

    def __init__(
        self,
        program: Appender,
        states: Sequence[State],
        methods: Mapping[str, AppendingMethod],
        cache_dtype: str = FLOAT32,
    ) -> None:
        super().__init__(states)
        self.cache_dtype = cache_dtype
        self._program = program
        self._methods = dict(methods)
        self._buffers: Buffers | None = None
        self._fixed: dict[str, Array] = {}
        self._rows = np.zeros(1, np.int64)
        self._length = 0

    @property
    def length(self) -> int:
        """See `Session.length`."""
        return self._length

    @property
    def room(self) -> int:
        """Rows that the buffers have room for."""
        return 0 if self._buffers is None else self._buffers.room

    def _run(self, feeds: Feeds, method: str, outputs: Sequence[str] | None) -> Outputs:
        name, appending = self._choose(method)
        if appending is None:
            return self._run_other(feeds, name, outputs)
        inner, present = self._split(appending, name, outputs)
        with appending.method.workspace.entered():
            results = self._run_token(appending, feeds) if outputs is None else None
            if results is None:
                results = self._run_anew(appending, name, feeds, inner)
            for state in appending.updated:
                self._fixed[state.input] = value = results.pop(state.output)
                if outputs is not None and state.output in outputs:
                    results[state.output] = value.copy()
        if outputs is None:
            return results
        buffers = self._buffers
        for output, cache in present.items():
            if buffers is not None:
                results[output] = buffers.rows(cache, self._length).copy()
        return {each: results[each] for each in outputs}

    def _choose(self, method: str) -> tuple[str, AppendingMethod | None]:
        """Return the name of a method, and the one that appends to caches, if it does.

        Raises:
            UsageError: an unknown method, or the program is closed.
        """
        appending = self._methods.get(method)
        if appending is not None:
            return method, appending
        self._program.signature(method)  # the program is open, and has the method
        name, _ = choose_method(dict.fromkeys(self._program.methods), method)
        return name, self._methods.get(name)

    def _kind(self, feeds: Feeds, method: str, outputs: Sequence[str] | None) -> Hashable:
        """See `Session._kind`: caches of one type, and feeds of equal shapes but for masks."""
        _, appending = self._choose(method)
        if appending is None or outputs is not None or not appending.merges:
            return None
        shapes = [(name, getattr(fed, "shape", None)) for name, fed in feeds.items()]
        if any(shape is None for _, shape in shapes):
            return None  # lists, or a mistake
        grown = appending.grown
        return self.cache_dtype, frozenset(
            (name, shape[:-1] if shape and name in grown else shape) for name, shape in shapes
        )

    def _run_merged(
        self, sessions: Sequence[Self], feeds: Sequence[Feeds], method: str
    ) -> list[Outputs] | None:
        """See `Session._run_merged`."""
        name, appending = self._choose(method)
        if appending is None:
            return None
        pairs = list(zip(sessions, feeds, strict=True))
        return _run_merged(self._program, appending, name, pairs)

    def lane(
        self, appending: AppendingMethod, name: str, feeds: Feeds, rows: int, *, check: bool
    ) -> Lane:
        """Return what the session brings to a run of several.

        Args:
            appending: the method that runs.
            name: of the method.
            feeds: arrays, without states.
            rows: that its buffers must have room for, beside those that there are.
            check: whether feeds are checked against the method's inputs.

        Raises:
            DataError: feeds that do not fit.
        """
        if check:
            appending.check_defaults(feeds)
        if check or appending.fed.derives:
            feeds = dict(appending.checker.check(feeds))
        buffers = self._own_buffers(appending, name, feeds, self._length + rows)
        self._rows[0] = self._length
        given = {
            **appending.fed.derive(feeds, self._length),
            **self._fixed_or_initial(appending, name, feeds),
            LENGTH: self._rows,
        }
        return Lane(given, buffers, self._length)

    def advance(self, appending: AppendingMethod, rows: int, results: Outputs) -> None:
        """Keep what a run of several has appended, and its states of fixed shape."""
        for state in appending.updated:
            self._fixed[state.input] = results.pop(state.output)
        self._length += rows

    def _fixed_or_initial(
        self, appending: AppendingMethod, name: str, feeds: Feeds
    ) -> dict[str, Array]:
        """Return the states of fixed shape; those that no run has set begin with zeros."""
        if all(state.axis is not None for state in appending.states):
            return {}
        signature = self._program.signature(name)
        found = {}
        for state, spec in states_of(signature, appending.states)[0]:
            if state.axis is None:
                kept = self._fixed.get(state.input)
                found[state.input] = (
                    initial(spec, state, signature, feeds) if kept is None else kept
                )
        return found

    def _mark(self, method: str) -> object:
        """See `Session._mark`."""
        mark = _Mark(self._buffers, dict(self._fixed), self._length)
        if self._choose(method)[1] is None and mark.buffers is not None:
            # What begins caches leaves their buffers: sessions that were forked must not write.
            with self._program.forking:
                mark.buffers.users.add(mark)
            mark.held = True
        return mark

    def _return_to(self, mark: Any) -> None:
        """See `Session._return_to`. Runs that append leave the rows before them as they were."""
        if mark.held:
            self._take(mark.buffers)
        self._fixed, self._length = mark.fixed, mark.length

    def _split(
        self, appending: AppendingMethod, name: str, outputs: Sequence[str] | None
    ) -> tuple[list[str] | None, dict[str, str]]:
        """Return the values to ask the method for, and the caches by the names of their outputs.

        Raises:
            UsageError: a value that it does not have, or that was not kept.
        """
        if outputs is None:
            return None, {}
        present = {
            state.output: state.input for state in appending.states if state.axis is not None
        }
        compiled, known = appending.method, {*appending.method.known, *present}
        readable = {*compiled.types, *present}
        asked = choose_outputs(name, outputs, (*appending.outputs, *present), readable, known)
        states = {state.output for state in appending.updated} | present.keys()
        return [each for each in asked if each not in states], {
            each: present[each] for each in asked if each in present
        }

    def _run_token(self, appending: AppendingMethod, feeds: Feeds) -> Outputs | None:
        """Run the prepared run; None where these feeds need another one."""
        token, buffers = appending.token, self._buffers
        if token is None or buffers is None or len(buffers.users) > 1 or type(feeds) is not dict:
            return None
        if appending.fed.derives:
            feeds = dict(appending.checker.check(feeds))
        self._rows[0] = self._length
        given = {
            **appending.fed.derive(feeds, self._length),
            **self._fixed_of(appending),
            LENGTH: self._rows,
        }
        total = self._length + token.rows
        with self._program.naming(appending.method):
            results = token.run(given, buffers, total, self._program.threads())
        if results is not None:
            self._length = total
        return results

    def _fixed_of(self, appending: AppendingMethod) -> dict[str, Array]:
        return {
            state.input: self._fixed[state.input]
            for state in appending.states
            if state.axis is None and state.input in self._fixed
        }

    def _run_anew(
        self,
        appending: AppendingMethod,
        name: str,
        feeds: Feeds,
        outputs: Sequence[str] | None,
    ) -> Outputs:
        """Run a method whose feeds are checked, with buffers of enough room."""
        appending.check_defaults(feeds)
        checked = dict(appending.checker.check(feeds))
        checked.update(self._fixed_or_initial(appending, name, feeds))
        checked = appending.fed.derive(checked, self._length)
        appending.token = None  # this run binds other caches
        wanted = list(appending.outputs if outputs is None else outputs)
        wanted += [state.output for state in appending.updated]
        room = self._length + 1
        while True:
            buffers = self._own_buffers(appending, name, feeds, room)
            self._rows[0] = self._length
            given = {**checked, LENGTH: self._rows}
            caches = {each: buffers.arrays[each] for each in appending.caches}
            try:
                results = self._program.run_method(appending.method, {**given, **caches}, wanted)
                break
            except CacheFullError as full:
                if full.rows <= buffers.room:
                    raise
                room = full.rows
        appending.check_rows(feeds)
        self._length += appending.appended_rows()
        if outputs is None:
            appending.prepare(buffers, given)
        return results

    def _own_buffers(
        self, appending: AppendingMethod, name: str, feeds: Feeds, room: int
    ) -> Buffers:
        """Return buffers with room for so many rows, which no other session reads."""
        buffers = self._buffers
        if buffers is None or not self._length:
            signature = self._program.signature(name)
            caches = {
                state.input: Cache(
                    state, initial(spec, state, signature, feeds).shape, dtype_of(spec)
                )
                for state, spec in states_of(signature, appending.states)[0]
                if state.axis is not None
            }
            if buffers is None or not buffers.fit(caches):
                buffers = self._take(self._new_buffers(caches, room))
        with self._program.forking:
            if buffers.room < room or len(buffers.users) > 1:
                own = buffers.copy(self._length, max(room, buffers.room))
                # Not before: a session that is alone may write.
                buffers = self._take(own)
        for each in appending.caches:
            if each not in buffers.arrays:
                raise UsageError(
                    f"state {each!r} has no rows, where others have {self._length}; run a method "
                    "that begins all of them, or restore all"
                )
        return buffers

    def _run_other(self, feeds: Feeds, name: str, outputs: Sequence[str] | None) -> Outputs:
        """Run a method that appends to no cache; it may begin them, as a prefill."""
        signature = self._program.signature(name)
        given, updated = states_of(signature, self.states)
        fed = dict(feeds)
        for state, spec in given:
            kept = self._fixed.get(state.input)
            fed[state.input] = initial(spec, state, signature, feeds) if kept is None else kept
        states = {state.output for state in updated}
        every = [spec.name for spec in signature.outputs]
        wanted = [n for n in every if n not in states] if outputs is None else list(outputs)
        asked = tuple(dict.fromkeys((*wanted, *states)))
        whole = outputs is None and set(asked) == set(every)
        results = self._program.run(fed, name, outputs=None if whole else asked)
        if updated:
            values = {state.input: results[state.output].copy() for state in updated}
            if given and all(state.axis is None for state in updated):
                self._fixed.update(values)
            else:
                self._restore(values if not given else {**self._fixed, **values})
        return {each: results[each] for each in wanted}

    def _values(self) -> Mapping[str, Array]:
        buffers = self._buffers
        if buffers is None or not self._length:
            return self._fixed
        grown = {name: buffers.rows(name, self._length) for name in buffers.arrays}
        return {**self._fixed, **grown}

    def _restore(self, values: Mapping[str, Array]) -> None:
        check_values(self._program, values)
        rows = rows_of(self.states, values)
        caches = {
            state.input: Cache(state, values[state.input].shape, values[state.input].dtype)
            for state in self.states
            if state.axis is not None and state.input in values
        }
        buffers = None
        if rows:  # what may fail comes first
            buffers = self._new_buffers(caches, rows + 1)
            buffers.fill({name: values[name] for name in caches}, rows)
        self._length = 0  # an interrupt in between leaves no row that is not there
        self._release() if buffers is None else self._take(buffers)
        self._fixed = {name: value for name, value in values.items() if name not in caches}
        self._length = rows

    def _new_buffers(self, caches: Mapping[str, Cache], room: int) -> Buffers:
        return Buffers(caches, room, self._program.extra_bytes, self.cache_dtype)

    def _file_arrays(self) -> dict[str, Array]:
        buffers = self._buffers
        if buffers is None or not self._length or buffers.stored == FLOAT32:
            return super()._file_arrays()
        stored = {name: buffers.stored_rows(name, self._length) for name in buffers.arrays}
        return file_arrays(stored, buffers.stored, self._fixed)

    def _take_file(self, arrays: Mapping[str, Array]) -> None:
        stored, found, values = read_file_arrays(arrays)
        for state in self.states:
            if state.axis is None and state.input in found:
                raise DataError(
                    f"state {state.input!r} does not grow, and is {stored} in the file: the file "
                    "is damaged"
                )
        self.restore(values)
        # Narrowed again, rows of int8 might get another scale.
        if self._buffers is not None and stored == self._buffers.stored:
            self._buffers.fill_stored(found, self._length)

    def _release(self) -> None:
        buffers, self._buffers = self._buffers, None
        if buffers is not None:
            with self._program.forking:
                buffers.users.discard(self)

    def _take(self, buffers: Buffers) -> Buffers:
        """Read and write other buffers from now on."""
        with self._program.forking:
            buffers.users.add(self)  # first: an interrupt in between loses no rows
            before, self._buffers = self._buffers, buffers
            if before is not None and before is not buffers:
                before.users.discard(self)
        return buffers

    def _rewind(self, rows: int) -> None:
        self._length -= rows

    def _fork(self) -> Self:
        other = type(self)(self._program, self.states, self._methods, self.cache_dtype)
        other._share(self._buffers, self._fixed, self._length)  # noqa: SLF001  # of this class
        return other

    def _share(self, buffers: Buffers | None, fixed: Mapping[str, Array], length: int) -> None:
        """Take the state of another session; which of the two appends first copies the buffers."""
        if buffers is not None:
            self._take(buffers)
        self._fixed, self._length = dict(fixed), length


def _run_merged(
    program: Appender,
    appending: AppendingMethod,
    name: str,
    pairs: Sequence[tuple[AppendingSession, Feeds]],
) -> list[Outputs] | None:
    """Run a method of several sessions at once.

    Args:
        program: of the sessions.
        appending: the method.
        name: of the method.
        pairs: the sessions, each with its feeds.

    Returns:
        The outputs of each; None, with all states as they were, where the sessions cannot run
        together, or one of them cannot run: in turn, it is known which one.
    """
    pool = program.threads()
    try:
        with appending.method.workspace.entered(), program.naming(appending.method):
            run, results = appending.merged, None
            if run is not None:
                lanes = [each.lane(appending, name, fed, 1, check=False) for each, fed in pairs]
                results = run.run(lanes, pool)
            if run is None or results is None:
                appending.token = appending.merged = None  # what they bind is to be freed
                run, lanes = _prepare(appending, name, pairs, pool)
                results = run.run(lanes, pool)
            if results is None:
                return None
            appending.merged = run
            for (each, _), found in zip(pairs, results, strict=True):
                each.advance(appending, run.rows, found)
            return results
    except NoLanesError:
        appending.never_merges = True
        return None
    except (BackendError, DataError, UsageError, UnevenLanesError):
        return None


def _prepare(
    appending: AppendingMethod,
    name: str,
    pairs: Sequence[tuple[AppendingSession, Feeds]],
    pool: Pool,
) -> tuple[MergedRun, list[Lane]]:
    """Bind the sessions, with caches of enough room.

    Raises:
        UnevenLanesError: one tape cannot compute them.
        DataError: feeds that do not fit.
        BackendError: likewise.
    """
    rows = 1
    while True:
        lanes = [each.lane(appending, name, fed, rows, check=True) for each, fed in pairs]
        try:
            sizes = _sizes(appending, lanes, pool)
        except CacheFullError as full:
            if full.rows <= rows:
                raise
            rows = full.rows
            continue
        found = appending.appended_rows()
        if found <= rows:
            break
        rows = found
    for _, fed in pairs:
        appending.check_rows(fed)
    (partition,) = appending.method.partitions
    return MergedRun(partition, sizes, lanes, appending.masks, found, pool), lanes


def _sizes(appending: AppendingMethod, lanes: Sequence[Lane], pool: Pool) -> list[Sizes]:
    """Return the sizes of each lane; those whose caches have room for as many rows share them."""
    known: dict[Hashable, Sizes] = {}
    found = []
    for lane in lanes:
        caches = {each: lane.buffers.arrays[each] for each in appending.caches}
        key = tuple(array.shape for array in caches.values())
        if key not in known:
            bound = appending.method.bind({**lane.feeds, **caches}, pool)
            if bound is None:
                raise UnevenLanesError("more than one partition runs")
            known[key] = bound[0].sizes()
        found.append(known[key])
    return found
