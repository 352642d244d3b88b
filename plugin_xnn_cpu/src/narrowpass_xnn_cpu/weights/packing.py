"""How a program comes to its packed weights: the cache of the process, and the file on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from narrowpass.errors import UsageError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_xnn_cpu.weights import names
from narrowpass_xnn_cpu.weights.cache import shared
from narrowpass_xnn_cpu.weights.entry import Entry
from narrowpass_xnn_cpu.weights.folder import CacheFile, chosen_folder
from narrowpass_xnn_cpu.weights.session import Session

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass_xnn_cpu.weights.file import PackedFile


@contextlib.contextmanager
def packing(bundle: Bundle, options: CompileOptions) -> Iterator[Session | None]:
    """Open a session for the operators of a bundle; commit it at the end, or abort it.

    Where the bundle lies on disk and `options` say so, blocks come from its file of packed
    weights. One process at a time packs what is not there, and writes it.

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
        with shared().begin() as session:
            yield session
        return
    file = CacheFile(folder, key)
    found = file.open()
    if found is not None:
        with _offering(found) as session:
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
        with _offering(found) as session:
            yield session
        if mine and _missing(session, found):
            file.write(named(session), found)


@contextlib.contextmanager
def _offering(file: PackedFile | None) -> Iterator[Session]:
    with shared().begin() as session:
        if file is not None:
            session.offer(file.addressed(), file)
        yield session


def _missing(session: Session, file: PackedFile | None) -> bool:
    """Tell whether a file lacks blocks of a session, or has them in a size that nobody needs."""
    known = set() if file is None else {(*item.key, item.size) for item in file.entries}
    return any((e.name, e.seed, e.fingerprint, e.size) not in known for e in named(session))


def named(session: Session) -> list[Entry]:
    """Give the blocks of a session that others can find."""
    return [entry for entry in session.entries() if entry.name]
