"""Runs of several sessions of one program: at once where they can, else in turn; all or none."""
# ruff: noqa: SLF001  # what sessions do for one another is no part of their interface

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.state.session import Runner, Session
from narrowpass_ir.arguments import kind_of

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds, Outputs


def run_sessions(
    program: Runner,
    sessions: Sequence[Session],
    feeds: Sequence[Feeds],
    method: str,
    outputs: Sequence[str] | None,
) -> list[Outputs]:
    """Run a method in several sessions; see `Program.run_sessions`."""
    _check(program, sessions, feeds)
    with contextlib.ExitStack() as locks:
        for session in sorted(sessions, key=id):  # two such runs never wait for each other
            locks.enter_context(session._lock)
        kinds: dict[Any, list[int]] = {}
        feeds = list(feeds)
        for index, session in enumerate(sessions):
            with _naming(index):
                feeds[index] = session._check_run(feeds[index])
                kind = session._kind(feeds[index], method, outputs)
            kinds.setdefault(index if kind is None else (type(session), kind), []).append(index)
        results: dict[int, Outputs] = {}
        marks: list[tuple[Session, object]] = []
        try:
            for indices in kinds.values():
                group, given = [sessions[i] for i in indices], [feeds[i] for i in indices]
                marks += [(session, session._mark(method)) for session in group]
                found = group[0]._run_merged(group, given, method) if len(group) > 1 else None
                if found is not None:
                    results.update(zip(indices, found, strict=True))
                    continue
                for index in indices:
                    with _naming(index):
                        results[index] = sessions[index].run(feeds[index], method, outputs)
        except BaseException:
            for session, mark in marks:
                session._return_to(mark)
            raise
    return [results[index] for index in range(len(sessions))]


def _check(program: Runner, sessions: Sequence[Session], feeds: Sequence[Feeds]) -> None:
    given: dict[str, object] = {"sessions": sessions, "feeds": feeds}
    for name, value in given.items():
        if not isinstance(value, list | tuple):
            raise UsageError(f"`{name}` is a list with an item for each session")
    if not sessions:
        raise UsageError("there is no session to run; pass at least one")
    if len(sessions) != len(feeds):
        raise UsageError(f"{len(sessions)} sessions need as many feeds, not {len(feeds)}")
    known: dict[int, int] = {}
    for index, session in enumerate(sessions):
        if not isinstance(session, Session):
            raise UsageError(f"item {index} of `sessions` is no session: {kind_of(session)}")
        if session._program is not program:
            raise UsageError(f"session {index} is of another program; run it by that")
        if id(session) in known:
            raise UsageError(
                f"session {index} is session {known[id(session)]}, which runs once; fork it"
            )
        known[id(session)] = index


@contextlib.contextmanager
def _naming(index: int) -> Iterator[None]:
    """Add the session's index to errors of its run."""
    try:
        yield
    except (BackendError, DataError, UsageError) as error:
        error.args = (f"session {index}: {error}", *error.args[1:])
        raise
