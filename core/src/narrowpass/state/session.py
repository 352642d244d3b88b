"""Sessions: runs of a program that carry state from one to the next."""

from __future__ import annotations

import abc
import io
import os
import threading
import zipfile
import zlib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.arguments import Uncopied, count_of, kind_of, path_of
from narrowpass_ir.data.arrays import plain_arrays
from narrowpass_ir.files import replacing_file

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from narrowpass.runtime.arrays import Feeds, Outputs
    from narrowpass_ir.state import State
    from narrowpass_ir.verify import Signature, ValueSpec

Array = np.ndarray[Any, Any]

_DAMAGED = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise for a file of other contents, or one that is encrypted, compressed
in an unknown way, or cut off."""


class Runner(Protocol):
    """What a session needs of a program: see `narrowpass.Program`."""

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods."""

    def signature(self, method: str = "main") -> Signature:
        """Return the inputs and outputs of a method."""

    def inputs(self, method: str = "main") -> tuple[ValueSpec, ...]:
        """Return the inputs of a method."""

    def run(
        self,
        feeds: Feeds,
        method: str = "main",
        outputs: Sequence[str] | None = None,
        out: Outputs | None = None,
    ) -> Outputs:
        """Run a method."""


class Session(Uncopied, abc.ABC):
    """Runs of a program whose state stays between them; a context manager that closes it.

    Threads may share it; its runs take turns.

    Args:
        states: that it keeps.

    Attributes:
        states: that it keeps.
        reason: why the backend does not append to caches in place; empty where it does, or has
            none to append to.
    """

    _instead = "Session.fork starts another one with the same state"
    _program: Any  # with the interface of `Runner`

    def __init__(self, states: Sequence[State]) -> None:
        self.states = tuple(states)
        self.reason = ""
        self._locks = {os.getpid(): threading.RLock()}
        self._closed = False

    @property
    def _lock(self) -> AbstractContextManager[object]:
        """The lock of runs; a forked child has its own: a thread of the parent may hold that."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Rows of the states that grow: the positions of the KV caches."""

    def run(
        self, feeds: Feeds, method: str = "main", outputs: Sequence[str] | None = None
    ) -> Outputs:
        """Run a method with the state, and keep what it becomes.

        Args:
            feeds: arrays by input name, of all inputs but those of the state.
            method: as for `Program.run`. One that has the outputs of the state and not its
                inputs, as a prefill, starts it anew.
            outputs: names of the values to return; None for the outputs that are no state.

        Raises:
            DataError: feeds that do not fit; the state stays as it was.
            UsageError: an unknown method or output, a feed of the state, or a closed session.
            BackendError: the computation failed; the state stays as it was.
        """
        with self._lock:
            return self._run(self._check_run(feeds), method, outputs)

    def _check_run(self, feeds: Feeds) -> Feeds:
        """Return feeds as plain arrays, after a check that they are a mapping without states."""
        self._check_open()
        if not isinstance(feeds, Mapping):
            raise DataError(f"feeds are a mapping of input names to arrays, not {kind_of(feeds)}")
        for state in self.states:
            if state.input in feeds:
                raise UsageError(
                    f"input {state.input!r} is state, which the session feeds; leave it out, "
                    "or call restore"
                )
        return plain_arrays(feeds, "the session")

    @abc.abstractmethod
    def _run(self, feeds: Feeds, method: str, outputs: Sequence[str] | None) -> Outputs:
        """Run a method; see `run`."""

    def _kind(self, feeds: Feeds, method: str, outputs: Sequence[str] | None) -> Hashable:
        """Return a key: sessions of equal ones may be able to run at once; None for no other."""
        return None

    def _run_merged(
        self, sessions: Sequence[Self], feeds: Sequence[Feeds], method: str
    ) -> list[Outputs] | None:
        """Run sessions of one `_kind` at once, this one among them; None where they run in turn."""
        return None

    @abc.abstractmethod
    def _mark(self, method: str) -> object:
        """Return what `_return_to` takes to undo a run of a method."""

    @abc.abstractmethod
    def _return_to(self, mark: Any) -> None:
        """Return to the state of a mark."""

    def values(self) -> dict[str, Array]:
        """Return copies of the states by input name; those that no run has set are left out."""
        with self._lock:
            self._check_open()
            return {name: np.array(value, order="C") for name, value in self._values().items()}

    @abc.abstractmethod
    def _values(self) -> Mapping[str, Array]:
        """Return the states by input name; views are allowed."""

    def restore(self, values: Mapping[str, Array]) -> None:
        """Replace all states by copies of arrays.

        Args:
            values: by input name, as `values` returns them; states that are left out start anew.

        Raises:
            UsageError: a name that is no state.
            DataError: an array that is of another dtype or rank than its input, caches with
                different numbers of rows, or some caches alone.
        """
        with self._lock:
            self._check_open()
            known = {state.input: state for state in self.states}
            for name, value in values.items():
                if name not in known:
                    raise UsageError(f"{name!r} is no state; states: {', '.join(known) or 'none'}")
                if not isinstance(value, np.ndarray):
                    raise DataError(f"state {name!r} is no array")
            grown = {
                name: value.shape[axis] if axis < value.ndim else -1
                for name, value in values.items()
                if (axis := known[name].axis) is not None
            }
            if len(set(grown.values())) > 1 or -1 in grown.values():
                raise DataError(f"caches have different numbers of rows: {grown}")
            missing = [s.input for s in self.states if s.axis is not None and s.input not in grown]
            if grown and missing:
                raise DataError(f"cache {missing[0]!r} is missing; restore all caches or none")
            self._restore({name: np.array(value, order="C") for name, value in values.items()})

    @abc.abstractmethod
    def _restore(self, values: Mapping[str, Array]) -> None:
        """Replace all states; see `restore`.

        Raises:
            DataError: an array that does not fit its input.
        """

    def reset(self) -> None:
        """Start anew: the next run has no state."""
        self.restore({})

    def rewind(self, rows: int) -> None:
        """Drop the last rows of the states that grow.

        Args:
            rows: their number, at most `length`.

        Raises:
            UsageError: more rows than there are, or a state that does not grow.
        """
        with self._lock:
            self._check_open()
            rows = count_of(rows, "`rows`", least=0)
            fixed = [state.input for state in self.states if state.axis is None]
            if rows and fixed:
                raise UsageError(
                    f"state {fixed[0]!r} does not grow, so that no rows of it can be dropped; "
                    "fork the session before the run, or restore earlier values"
                )
            if rows > self.length:
                raise UsageError(f"{rows} rows cannot be dropped: the state has {self.length}")
            self._rewind(rows)

    @abc.abstractmethod
    def _rewind(self, rows: int) -> None:
        """Drop rows; see `rewind`."""

    def fork(self) -> Self:
        """Return another session of the program that starts with this one's state."""
        with self._lock:
            self._check_open()
            return self._fork()

    @abc.abstractmethod
    def _fork(self) -> Self:
        """Return another session with this one's state."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which `load` reads; numpy reads it as an ``.npz``.

        Raises:
            UsageError: `path` is a folder, or its folder does not exist.
            OutputError: it cannot be written; what was there stays.
        """
        with self._lock:
            self._check_open()
            arrays: dict[str, Any] = self._file_arrays()
        with replacing_file(Path(path_of(path, "`path`"))) as file:
            np.savez(file, **arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the state by that of a file.

        Raises:
            UsageError: there is no such file, or it has a state that the program does not have.
            DataError: it is damaged, or does not fit; the state stays as it was.
        """
        text = path_of(path, "`path`")
        try:
            data = Path(text).read_bytes()
        except OSError as error:
            raise UsageError(f"{text}: cannot be read: {error.strerror}") from error
        try:
            file = np.load(io.BytesIO(data), allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is one array")
            with file:
                arrays = {name: file[name] for name in file.files}
        except _DAMAGED as error:
            raise DataError(f"{text}: is no state that Session.save wrote: {error}") from error
        with self._lock:
            self._check_open()
            self._take_file(arrays)

    def _file_arrays(self) -> dict[str, Array]:
        """Return copies of what `save` writes, by name."""
        return {f"state.{name}": _stored(value) for name, value in self.values().items()}

    def _take_file(self, arrays: Mapping[str, Array]) -> None:
        """Replace all states by what `load` has read."""
        kinds = {name.partition(".")[0] for name in arrays} & {"float16", "bfloat16", "int8"}
        if kinds:
            raise UsageError(
                f"the file has caches of {min(kinds)}, which only sessions that append in place "
                f"read; this one does not: {self.reason or 'its backend has none'}"
            )
        self.restore({name.removeprefix("state."): value for name, value in arrays.items()})

    def close(self) -> None:
        """Free the state. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._restore({})
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the session is closed; Program.session starts another one")


def _stored(value: Array) -> Array:
    """Return an array that ``.npz`` can hold: bfloat16 has no type there, and is refused."""
    if value.dtype.kind == "V":
        raise UsageError(f"states of {value.dtype} cannot be saved; save float32 ones")
    return value
