"""Measured times of kernels on this processor, kept between builds.

A file of SQLite in the user's cache directory, so that processes may write at once. A time belongs
to a processor with its instruction sets, a backend with its version, and a number of threads, and
is measured once: builds with the same times and data choose the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from narrowpass.errors import DataError, OutputError
from narrowpass.runtime.processors import usable_processors
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend

FILE_NAME = "tuning.sqlite"
_FORMAT = 1
_PATIENCE = 30.0
_LATEST = 1e11
"""Seconds since 1970 that no clock shows."""
_log = logging.getLogger("narrowpass.auto")


@dataclass(frozen=True)
class Entry:
    """One measured time.

    Attributes:
        processor: where it was measured; see `processor_text`.
        key: what was measured, hashed.
        what: the same as text, shortened.
        seconds: of the whole, of conversions of operands, and of those of results.
        created: seconds since 1970.
    """

    processor: str
    key: str
    what: str
    seconds: tuple[float, ...]
    created: float


def default_path() -> Path:
    """Return the file in ``NARROWPASS_CACHE_DIR``, or in the user's cache directory.

    Each format has one of its own, so that versions may use a folder in turns.
    """
    given = os.environ.get("NARROWPASS_CACHE_DIR")
    folder = Path(given) if given else Path(platformdirs.user_cache_dir("narrowpass"))
    return folder / (FILE_NAME if _FORMAT == 1 else f"{_FORMAT}-{FILE_NAME}")


def processor_text(backend: Backend) -> str:
    """Return what times depend on beside the kernels: processor, backend, versions, threads."""
    details = ", ".join(f"{name} {text}" for name, text in sorted(backend.details().items()))
    module = type(backend).__module__.partition(".")[0]
    try:
        number = version(module.replace("_", "-"))
    except PackageNotFoundError:  # a backend need not come from a distribution
        number = version("narrowpass")
    threads = f"{usable_processors()} threads"
    return f"{_processor_name()}; {backend} {number}; {details or 'no details'}; {threads}"


def _processor_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Database:
    """Times by processor and key.

    A file that cannot be opened or written, or that other users may have written, is no reason to
    fail: times are kept in memory then, with one warning.

    Args:
        path: of the file; created, with its folder, where it is not there. None for memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._connection = self._open(path)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            try:
                create_own_folder(path.parent)
                if reason := _distrusted(path):
                    _log.warning("measured times are not read, and not kept: %s", reason)
                    return _connect(":memory:")
                return _connect(str(path))
            except (OSError, sqlite3.Error, DataError) as error:
                _log.warning("%s: times are not kept: %s; `tune prune` deletes it", path, error)
        return _connect(":memory:")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def find(self, processor: str, what: str) -> tuple[float, ...] | None:
        """Return the seconds of what was measured on a processor; None where it was not."""
        query = "SELECT seconds FROM times WHERE processor = ? AND key = ?"
        with self._failing_softly():
            row = self._connection.execute(query, (processor, _hash(what))).fetchone()
            return None if row is None else _numbers(row[0])
        return None  # type: ignore[unreachable]  # after an error of the file

    def add(self, processor: str, what: str, seconds: tuple[float, ...]) -> tuple[float, ...]:
        """Keep a time; return the one that counts: the first that was kept."""
        row = (processor, _hash(what), what[:_SHOWN], json.dumps(seconds), time.time())
        with self._failing_softly(), self._connection as connection:
            connection.execute("INSERT OR IGNORE INTO times VALUES (?, ?, ?, ?, ?)", row)
        return self.find(processor, what) or seconds

    def entries(self) -> Iterator[Entry]:
        """Yield all times, by processor and by what was measured.

        Raises:
            DataError: the file is damaged.
        """
        query = "SELECT processor, key, what, seconds, created FROM times ORDER BY 1, 3, 2"
        try:
            for processor, key, what, seconds, created in self._connection.execute(query):
                texts = _text(processor), _text(key), _text(what)
                yield Entry(*texts, _numbers(seconds), time_of(created))
        except (sqlite3.Error, ValueError) as error:
            raise DataError(f"{self.path}: {error}; `narrowpass tune prune` deletes it") from error

    def insert(self, entries: list[Entry]) -> int:
        """Add times that others measured; return how many were new.

        Raises:
            OutputError: the file cannot be written.
        """
        rows = [(e.processor, e.key, e.what, json.dumps(e.seconds), e.created) for e in entries]
        return self._change("INSERT OR IGNORE INTO times VALUES (?, ?, ?, ?, ?)", rows)

    def delete(self, processors: list[str]) -> int:
        """Delete the times of processors; return how many there were.

        Raises:
            OutputError: the file cannot be written.
        """
        rows = [(name,) for name in processors]
        return self._change("DELETE FROM times WHERE processor = ?", rows)

    def _change(self, statement: str, rows: Sequence[tuple[object, ...]]) -> int:
        """Run a statement for each row; return how many rows of the table it changed."""
        try:
            with self._connection as connection:
                before = connection.total_changes
                connection.executemany(statement, rows)
                return int(connection.total_changes - before)
        except sqlite3.Error as error:
            raise OutputError(f"{self.path}: {error}") from error

    @contextlib.contextmanager
    def _failing_softly(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            _log.warning("%s: times are not kept: %s", self.path, error)
            self._connection.close()
            self._connection = _connect(":memory:")


_SHOWN = 400


def _distrusted(path: Path) -> str:
    """Return why another user may have written a database; empty where none can.

    SQLite opens files by their names, also those of a process that died: who can add a file to the
    folder can change the database, also where the sticky bit is set.

    Raises:
        OSError: it cannot be looked at.
    """
    reason = distrust_folder(path.parent, sticky=False)
    for end in ("", "-journal", "-wal", "-shm"):
        file = path.with_name(path.name + end)
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                reason = reason or f"{file} is not a regular file; delete it"
            reason = reason or distrust_file(file, status)
    return reason


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_PATIENCE)
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, _FORMAT):
            raise DataError(f"it is of format {found}, and this version reads {_FORMAT}")
        if not found:  # a file that is only read must not change
            with connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS times (processor TEXT, key TEXT, what TEXT, "
                    "seconds TEXT, created REAL, PRIMARY KEY (processor, key))"
                )
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
    except BaseException:
        connection.close()
        raise
    return connection


def _hash(what: str) -> str:
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is no text")
    return value


def _numbers(text: object) -> tuple[float, ...]:
    return numbers_of(parse_json(_text(text)))


def time_of(found: object) -> float:
    """Return seconds since 1970 that were read from a file.

    Raises:
        ValueError: they are none.
    """
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0.0 <= found < _LATEST:
        raise ValueError(f"{found!r:.60} is no time")
    return float(found)


def numbers_of(found: object) -> tuple[float, ...]:
    """Return seconds that were read from a file.

    Raises:
        ValueError: they are none.
    """
    if (
        not isinstance(found, list)
        or not found
        or not all(type(number) in (float, int) and 0.0 <= number < 1e9 for number in found)
    ):
        raise ValueError(f"{found!r:.60} is no list of seconds")
    return tuple(map(float, found))
