"""Where files of packed weights are, who may write one, and when one is trusted."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from narrowpass.errors import NarrowpassError, UsageError
from narrowpass.files import replacing_file
from narrowpass_xnn_cpu.weights.entry import Entry
from narrowpass_xnn_cpu.weights.file import PackedFile, UnusableError, write

SUFFIX = ".weights"
PATIENCE = 60.0
"""Seconds to wait for another process that packs the same weights."""

_LEFT_BEHIND = 3600.0
"""Seconds after which a file that is still being written is taken for one of a dead process."""

_log = logging.getLogger("narrowpass.xnn-cpu")


def default_folder() -> Path:
    """Give ``NARROWPASS_CACHE_DIR``, or the user's cache directory as the system has it."""
    given = os.environ.get("NARROWPASS_CACHE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("narrowpass")) / "weights"


class CacheFile:
    """The file of packed weights of one set of weights.

    Args:
        folder: where files are; made when one is written.
        key: of the weights; see `names.key_of`.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f"{key}{SUFFIX}"

    def open(self) -> PackedFile | None:
        """Give the file, if it is there, whole and for this machine.

        Its blocks are read and compared with their checksums, unless the file is the one, byte for
        byte and by its times, for which that was done before.
        """
        try:
            file = PackedFile(self.path)
            if not _was_checked(file):
                check(file)
        except (FileNotFoundError, UnusableError) as error:
            if self.path.exists():
                _log.info("packed weights are made again: %s", str(error))
            return None
        except OSError as error:
            _log.info("packed weights cannot be read: %s", str(error))
            return None
        with contextlib.suppress(OSError):
            os.utime(_note(self.path))  # when it was used last
        return file

    @contextlib.contextmanager
    def writing(self, patience: float = PATIENCE) -> Iterator[bool]:
        """Wait for one's turn to write; give whether it is.

        It is not where the folder cannot be written to, or where another process has been writing
        for `patience` seconds. Then packed weights stay in memory.
        """
        lock = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{self.path}.lock", timeout=patience)
            lock.acquire()
        except Timeout:
            _log.info("%s: another process is writing it", self.path)
            lock = None
        except (FileExistsError, NotADirectoryError):
            lock = None
            _warn(self.path, f"{self.path.parent} is no folder")
        except OSError as error:
            lock = None
            _warn(self.path, error)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def write(self, entries: Iterable[Entry], kept: PackedFile | None) -> None:
        """Write the file anew, in one step; where that fails, say so once."""
        try:
            with replacing_file(self.path) as file:
                write(file, list(entries), kept)
        except (NarrowpassError, OSError) as error:
            _warn(self.path, error)


_warned: set[Path] = set()


def _warn(path: Path, error: Exception | str) -> None:
    if path.parent not in _warned:
        _warned.add(path.parent)
        _log.warning(
            "packed weights are kept in memory only, and packed again by the next process: %s; "
            "give another place with cache_dir or NARROWPASS_CACHE_DIR, or cache='memory'",
            str(error),  # the error itself refers to all that was open
        )


def _note(path: Path) -> Path:
    """Give the file that says when `path` was found to be whole."""
    return path.with_name(f"{path.name}.checked")


def _was_checked(file: PackedFile) -> bool:
    try:
        return bool(json.loads(_note(file.path).read_bytes()) == file.status)
    except (OSError, ValueError):
        return False


def check(file: PackedFile) -> None:
    """Read all of a file, and note that it is whole.

    Raises:
        UnusableError: it is not.
    """
    status = file.status
    damaged = file.damaged()
    if damaged:
        raise UnusableError(
            f"{file.path}: {len(damaged)} of {len(file.entries)} blocks are damaged"
        )
    with contextlib.suppress(NarrowpassError, OSError), replacing_file(_note(file.path)) as note:
        note.write(json.dumps(status).encode())


@dataclass(frozen=True)
class Listed:
    """A file of packed weights in a folder.

    Attributes:
        path: of the file.
        size: its bytes.
        used: when it was used last, in seconds since 1970.
        problem: why it is of no use here; empty where it is.
        blocks: how many it has.
    """

    path: Path
    size: int
    used: float
    problem: str
    blocks: int


def listed(folder: Path, *, verify: bool = False) -> list[Listed]:
    """Give the files of a folder, those used last first.

    Args:
        folder: where they are.
        verify: whether to read them all; `problem` then tells of damage too.
    """
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        problem, blocks = "", 0
        try:
            size, used = path.stat().st_size, path.stat().st_mtime
            with contextlib.suppress(OSError):
                used = max(used, _note(path).stat().st_mtime)
            file = PackedFile(path)
            blocks = len(file.entries)
            if verify:
                check(file)
        except FileNotFoundError:
            continue  # somebody has just deleted it
        except (UnusableError, OSError) as error:
            problem = str(error)
        found.append(Listed(path, size, used, problem, blocks))
    return sorted(found, key=lambda item: -item.used)


def prune(folder: Path, max_size: int) -> list[Listed]:
    """Delete files until those left have `max_size` bytes: useless ones, then the longest unused.

    Processes that have one mapped keep it. What a process that was killed left behind goes too.

    Returns:
        The files that were deleted.

    Raises:
        UsageError: `max_size` is negative.
        OSError: a file cannot be deleted.
    """
    if max_size < 0:
        raise UsageError(f"a size must not be negative: {max_size}")
    deleted, total = [], 0
    for item in listed(folder):
        if not item.problem and total + item.size <= max_size:
            total += item.size
            continue
        with _turn(item.path) as mine:
            if mine:
                # The lock stays: somebody may be about to take it.
                item.path.unlink(missing_ok=True)
                _note(item.path).unlink(missing_ok=True)
                deleted.append(item)
            else:
                total += item.size  # somebody is just writing it
    for path in folder.glob(".narrowpass-*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND:
                path.unlink()
    return deleted


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[bool]:
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
