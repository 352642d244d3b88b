"""The session of a program: the cache of the process, and the file on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from narrowpass.errors import UsageError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.weights import names
from narrowpass_planning.weights.cache import WeightsCache
from narrowpass_planning.weights.entry import Entry
from narrowpass_planning.weights.folder import CacheFile, chosen_folder
from narrowpass_planning.weights.packer import Packer
from narrowpass_planning.weights.session import Session

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass_planning.weights.file import PackedFile

S = TypeVar("S", bound=Session)


@contextlib.contextmanager
def packing(
    bundle: Bundle, options: CompileOptions, cache: WeightsCache[S], packer: Packer
) -> Iterator[S | None]:
    """Open a session for the operators of a bundle; commit it at the end, or abort it on an error.

    Where the bundle is on disk and `options` allow it, blocks come from its file of packed weights.
    One process at a time packs the missing ones, and writes them.

    Args:
        bundle: whose weights are packed.
        options: `CompileOptions.cache` and `cache_dir`.
        cache: the process's cache of this backend's packed weights.
        packer: identifies the packing code.

    Raises:
        UsageError: `CompileOptions.cache` is none of its values, or `cache_dir` no path.
    """
    if options.cache not in (True, False, "memory"):
        raise UsageError(f"cache must be True, False or 'memory', not {options.cache!r}")
    if options.cache is False:
        yield None
        return
    folder = chosen_folder(options.cache_dir)
    key = names.key_of(bundle) if options.cache is True else None
    if key is None:
        with cache.begin() as session:
            yield session
        return
    file = CacheFile(folder, key, packer)
    found = file.open()
    if found is not None:
        with _offering(cache, found) as session:
            yield session
        if _missing(session, found):
            # Operators that this bundle had not before: the other blocks of its file are kept.
            with file.writing(patience=0) as mine:
                if mine:
                    file.write(named(session), file.open())
        return
    with file.writing() as mine:
        # Somebody else may have written it while this process waited.
        found = file.open()
        with _offering(cache, found) as session:
            yield session
        if mine and _missing(session, found):
            file.write(named(session), found)


@contextlib.contextmanager
def _offering(cache: WeightsCache[S], file: PackedFile | None) -> Iterator[S]:
    with cache.begin() as session:
        if file is not None:
            session.offer(file.addressed(), file)
        yield session


def _missing(session: Session, file: PackedFile | None) -> bool:
    """Return whether a file lacks blocks of a session, or has them in other sizes."""
    known = set() if file is None else {(*item.key, item.size) for item in file.entries}
    return any((e.name, e.seed, e.fingerprint, e.size) not in known for e in named(session))


def named(session: Session) -> list[Entry]:
    """Return the blocks of a session that have names, so that they can be shared."""
    return [entry for entry in session.entries() if entry.name]
