"""The cache folder: files of packed weights, their locks, checks and eviction."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from narrowpass.errors import NarrowpassError, OutputError, UsageError
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.data.trust import create_own_folder, distrust_file, distrust_folder
from narrowpass_planning.weights.entry import Entry
from narrowpass_planning.weights.file import HEADER, VERSION, PackedFile, UntrustedError, write
from narrowpass_planning.weights.packer import Packer, UnusableError
from narrowpass_planning.weights.weight import digest
from narrowpass_planning.weights.writing import delete_leftovers, is_unused, leftovers, replacing

PATIENCE = 60.0
"""Seconds to wait for another process that packs the same weights."""

METHOD = ".method"
"""Suffix of the files of compiled methods, which begin with the key of their weights and a dot."""

_BUNDLE = ".narrow"
"""Suffix of bundles."""

_LARGEST_NOTE = 1 << 12

_log = logging.getLogger("narrowpass.planning")


def chosen_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of files: `given`, or ``NARROWPASS_CACHE_DIR``, or the user's.

    Raises:
        UsageError: it cannot be the path of a folder.
    """
    if given is None:
        return default_folder()
    try:
        path = os.fsdecode(given)
    except TypeError:
        raise UsageError(f"cache_dir must be the path of a folder, not {given!r}") from None
    if not path or "\0" in path:
        raise UsageError(f"cache_dir must be the path of a folder, which {path!r} cannot be")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"cache_dir cannot be {path!r}: it is not Unicode") from None
    return Path(path)


def default_folder() -> Path:
    """Return ``NARROWPASS_CACHE_DIR``, or the user's cache directory as the system has it."""
    given = os.environ.get("NARROWPASS_CACHE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("narrowpass")) / "weights"


class CacheFile:
    """The file of packed weights of one set of weights.

    Other versions of the format or of the packing code have files of their own beside it: versions
    that use a folder in turns do not replace each other's.

    Args:
        folder: of the files; created when one is written.
        key: of the weights; see `names.key_of`.
        packer: identifies the packing code.
    """

    def __init__(self, folder: Path, key: str, packer: Packer) -> None:
        self.path = folder / f"{key}.{_version(packer)}{packer.suffix}"
        self._packer = packer
        self._distrusted = False

    def open(self) -> PackedFile | None:
        """Return the file, if it is valid, for this machine, and not writable by other users.

        Files that are writable by others stay, and a warning names them.

        Its blocks are read and compared with their checksums, unless that was done before for this
        file with the same size and times.
        """
        try:
            if self._distrusts_folder():
                return None
            delete_leftovers(self.path.parent)
            file = PackedFile(self.path, self._packer)
            if not _was_checked(file):
                check(file)
            file.close()
        except FileNotFoundError:
            return None
        except UntrustedError as error:
            self._distrusted = True
            _warn(self.path, error)
            return None
        except UnusableError as error:
            _log.info("weights are packed again: %s", str(error))
            return None
        except OSError as error:
            _log.info("packed weights cannot be read: %s", str(error))
            return None
        with contextlib.suppress(OSError):
            os.utime(_note(self.path))  # when it was used last
        return file

    def _distrusts_folder(self) -> bool:
        reason = distrust_folder(self.path.parent)
        if reason:
            self._distrusted = True
            _warn(self.path.parent, reason)
        return bool(reason)

    @contextlib.contextmanager
    def writing(self, patience: float = PATIENCE) -> Iterator[bool]:
        """Acquire the lock of the file for writing; yield whether that succeeded.

        It fails where the folder is not writable, or is writable by others, or where another
        process holds the lock for `patience` seconds. Then packed weights stay in memory.
        """
        lock = None
        if self._distrusted:
            yield False
            return
        try:
            create_own_folder(self.path.parent)
            lock = FileLock(f"{self.path}.lock", timeout=patience)
            lock.acquire()
        except Timeout:
            _log.info("%s: another process is writing it", self.path)
            lock = None
        except (FileExistsError, NotADirectoryError):
            lock = None
            _warn(self.path.parent, f"{self.path.parent} is no folder")
        except OSError as error:
            lock = None
            _warn(self.path.parent, error)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):  # it ends with this process
                    lock.release()

    def write(self, entries: Iterable[Entry], kept: PackedFile | None) -> None:
        """Replace the file atomically; log one warning where that fails.

        Files of other versions that nobody has used for a week are deleted.
        """
        try:
            with replacing(self.path) as file:
                write(file, list(entries), kept, self._packer)
        except (NarrowpassError, OSError) as error:
            _warn(self.path.parent, error)
            return
        with contextlib.suppress(OSError):
            self._delete_unused()

    def _delete_unused(self) -> None:
        key = _key_of(self.path)
        for path in self.path.parent.glob(f"{key}*{self._packer.suffix}"):
            others = path != self.path and _key_of(path) == key
            if others and is_unused(_used(path)):
                with _turn(path) as mine:
                    if mine:
                        _delete(path)


def _key_of(path: Path) -> str:
    """Return the key that the name of a file begins with."""
    return path.name.partition(".")[0]


def _version(packer: Packer) -> str:
    """Return what two versions of the format, or of the packing code, differ in."""
    return digest("version", VERSION, platform.machine(), packer.build())[:16]


_warned: set[Path] = set()


def _warn(path: Path, error: Exception | str) -> None:
    """Warn once for each path that weights stay in memory, and why."""
    if path not in _warned:
        _warned.add(path)
        _log.warning(
            "packed weights are kept in memory only, and packed again by the next process: %s; "
            "set another folder with cache_dir or NARROWPASS_CACHE_DIR, or cache='memory'",
            str(error),  # the error itself refers to all that was open
        )


def _note(path: Path) -> Path:
    """Return the file that records the status with which `path` was verified."""
    return path.with_name(f"{path.name}.checked")


def _used(path: Path) -> float:
    """Return when a file was used last, in seconds since 1970.

    Raises:
        OSError: it is not there.
    """
    used = path.stat().st_mtime
    with contextlib.suppress(OSError):
        used = max(used, _note(path).stat().st_mtime)
    return used


def _delete(path: Path) -> None:
    # The lock stays: somebody may be about to take it.
    path.unlink(missing_ok=True)
    _note(path).unlink(missing_ok=True)


def _was_checked(file: PackedFile) -> bool:
    try:
        with open(_note(file.path), "rb", opener=_unfollowed) as note:
            trusted = not distrust_file(_note(file.path), os.fstat(note.fileno()))
            return trusted and bool(parse_json(note.read(_LARGEST_NOTE)) == file.status)
    except (OSError, ValueError):
        return False


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def check(file: PackedFile) -> None:
    """Verify the checksums of all blocks of a file, and record that.

    Raises:
        UnusableError: blocks are damaged.
    """
    status = file.status
    damaged = file.damaged()
    if damaged:
        raise UnusableError(
            f"{file.path}: {len(damaged)} of {len(file.entries)} blocks are damaged"
        )
    with contextlib.suppress(OSError), replacing(_note(file.path)) as note:
        note.write(json.dumps(status).encode())


@dataclass(frozen=True)
class Listed:
    """A file of packed weights in a cache folder, or a bundle in a folder there.

    Attributes:
        path: of the file, or of the bundle's folder.
        size: its bytes.
        used: the time of its last use, in seconds since 1970.
        problem: why it cannot be used; empty where it can.
        blocks: the number of its blocks.
        is_leftover: whether it is a temporary file of a writer that was killed.
        is_bundle: whether it is a bundle, which others keep beside the packed weights.
        is_foreign: whether it is of another version of narrowpass, or of another machine.
    """

    path: Path
    size: int
    used: float
    problem: str
    blocks: int
    is_leftover: bool = False
    is_bundle: bool = False
    is_foreign: bool = False


_FOREIGN = "packed by another version of narrowpass, or for another machine, which may use it"


def listed(folder: Path, packer: Packer, *, verify: bool = False) -> list[Listed]:
    """Return the files and bundles of a cache folder, last used first, and what writers left.

    Args:
        folder: of the files.
        packer: whose files are listed.
        verify: whether to read all blocks; `problem` then reports damage too.
    """
    found = [] if not folder.is_dir() else [*_leftovers(folder), *_bundles(folder)]
    distrusted, version = distrust_folder(folder), _version(packer)
    for path in sorted(folder.glob(f"*{packer.suffix}")) if folder.is_dir() else ():
        problem, blocks = "", 0
        try:
            size, used = path.stat().st_size, _used(path)
            if path.name.removesuffix(packer.suffix).partition(".")[2] not in ("", version):
                found.append(Listed(path, size, used, _FOREIGN, 0, is_foreign=True))
                continue
            file = PackedFile(path, packer)
            blocks = len(file.entries)
            if verify:
                check(file)
            problem = distrusted
        except FileNotFoundError:
            continue  # somebody has just deleted it
        except (UnusableError, OSError) as error:
            problem = str(error)
        found.append(Listed(path, size, used, problem, blocks))
    return sorted(found, key=lambda item: -item.used)


def _bundles(folder: Path) -> list[Listed]:
    """Return the bundles in folders of the cache folder; the time of a bundle is its last use."""
    found = []
    for path in folder.glob(f"*/*{_BUNDLE}"):
        with contextlib.suppress(OSError):  # somebody has just deleted it
            size = sum(file.lstat().st_size for file in path.rglob("*"))
            found.append(Listed(path, size, path.stat().st_mtime, "", 0, is_bundle=True))
    return found


def _leftovers(folder: Path) -> list[Listed]:
    """Return the files that killed writers left, if they are large enough to matter."""
    found = []
    for path in leftovers(folder):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_size >= HEADER:
                problem = "left by a process that was killed; the next load, or prune, deletes it"
                item = Listed(path, status.st_size, status.st_mtime, problem, 0, is_leftover=True)
                found.append(item)
    return found


def prune(folder: Path, max_size: int, packer: Packer) -> list[Listed]:
    """Delete files until `max_size` bytes are left: unusable ones, then the least recently used.

    Files of other versions count as usable: whoever wrote them may be in use, too. Bundles that
    others keep in the folder count as files. Processes that have one mapped keep it. Temporary
    files of killed writers are deleted too, and compiled methods of weights that are not there;
    others are not counted.

    Returns:
        The files that were deleted.

    Raises:
        UsageError: `max_size` is negative.
        OutputError: a file cannot be deleted.
    """
    if max_size < 0:
        raise UsageError(f"a size must not be negative: {max_size}")
    try:
        return _prune(folder, max_size, packer)
    except OSError as error:
        raise OutputError(
            f"{error.filename or folder}: cannot be deleted: {error.strerror}; "
            "who it belongs to can do that"
        ) from error


def _prune(folder: Path, max_size: int, packer: Packer) -> list[Listed]:
    deleted, total = [], 0
    for item in listed(folder, packer):
        if item.is_leftover:
            continue
        if (item.is_foreign or not item.problem) and total + item.size <= max_size:
            total += item.size
            continue
        if item.is_bundle:
            shutil.rmtree(item.path)
            deleted.append(item)
            continue
        with _turn(item.path) as mine:
            if mine:
                _delete(item.path)
                deleted.append(item)
            else:
                total += item.size  # somebody is just writing it
    left_weights = {_key_of(path) for path in folder.glob(f"*{packer.suffix}")}
    for path in folder.glob(f"*{METHOD}"):
        if _key_of(path) not in left_weights:
            path.unlink(missing_ok=True)
    left = {item.path: item for item in _leftovers(folder)}
    return deleted + [left[path] for path in delete_leftovers(folder) if path in left]


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
