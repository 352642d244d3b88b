"""The models of a server by name: loaded, replaced while they are served, unloaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from narrowpass.errors import NarrowpassError
from narrowpass_serve.errors import RequestError
from narrowpass_serve.models.served import Served
from narrowpass_serve.models.sources import Identity, Source
from narrowpass_serve.settings import Settings
from narrowpass_serve.threads import start

if TYPE_CHECKING:
    from narrowpass import Plugins
    from narrowpass_serve.metrics import Metrics


_log = logging.getLogger("narrowpass.serve")


class _Entry:
    """A name, what is served under it, and who uses that."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.loading = threading.Lock()  # held by one load at a time, never by requests
        self.current: Served | None = None
        self.users: dict[Served, int] = {}
        self.loads = 0
        self.seen: Identity | None = None
        self.reason = "it was not loaded"


class Repository:
    """Models by name. Every method may be called from any thread; `load` takes its time.

    Args:
        sources: by name; none is loaded yet.
        settings: of the server.
        metrics: of the server.
        plugins: that are used; None for the installed ones.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        settings: Settings,
        metrics: Metrics,
        plugins: Plugins | None = None,
    ) -> None:
        self._entries = {name: _Entry(source) for name, source in sources.items()}
        self._settings, self._metrics, self._plugins = settings, metrics, plugins
        self._lock = threading.Lock()  # of what entries have; held for moments

    @property
    def names(self) -> list[str]:
        """The names of all models, loaded or not."""
        return list(self._entries)

    def load(self, name: str) -> Served:
        """Load a model, or load it anew: what is served is replaced when the new one can run.

        Requests that run go on with the version that they began with.

        Raises:
            RequestError: there is no such model.
            NarrowpassError: it cannot be loaded; what was served still is.
        """
        entry = self._entry(name)
        with entry.loading:
            seen = entry.source.identity()
            try:
                new = Served(
                    entry.source, entry.loads + 1, self._settings, self._metrics, self._plugins
                )
            except Exception as error:
                # Not tried again before the files change: it would fail in the same way.
                entry.seen = seen
                entry.reason = str(error) or "there is not enough memory to load it"
                self._metrics.loads.labels(name, "failed").inc()
                raise
            with self._lock:
                entry.loads += 1
                entry.seen, entry.reason = seen, ""
                old, entry.current = entry.current, new
                entry.users[new] = 0
        self._metrics.loads.labels(name, "loaded").inc()
        self._metrics.version.labels(name).set(entry.loads)
        if old is not None:
            self._retire(entry, old)
        return new

    def unload(self, name: str) -> None:
        """Serve a model no longer; requests that run go on.

        Raises:
            RequestError: there is no such model.
        """
        entry = self._entry(name)
        with entry.loading:
            with self._lock:
                old, entry.current, entry.reason = entry.current, None, "it was unloaded"
            self._metrics.version.labels(name).set(0)
            if old is not None:
                self._retire(entry, old)

    def changed(self) -> list[str]:
        """Return the loaded models whose files are others than those that were loaded last."""
        return [
            name
            for name, entry in self._entries.items()
            if entry.current is not None
            and (now := entry.source.identity()) is not None
            and now != entry.seen
        ]

    @contextlib.contextmanager
    def lease(self, name: str, version: str = "") -> Iterator[Served]:
        """Use what is served under a name; it is not closed within the block.

        Args:
            name: of the model.
            version: that the client wants; empty for the current one.

        Raises:
            RequestError: there is no such model, it is not loaded, or of another version.
        """
        entry = self._entry(name)
        with self._lock:
            served = entry.current
            if served is None:
                raise RequestError(f"model {name!r} is not loaded: {entry.reason}", 404)
            if version and version != served.version:
                raise RequestError(
                    f"model {name!r} has no version {version!r}; {served.version!r} is served", 404
                )
            entry.users[served] += 1
        try:
            yield served
        finally:
            with self._lock:
                entry.users[served] -= 1
            self._close_unused(entry, served)

    def is_ready(self, name: str = "") -> bool:
        """Return whether a model is loaded; for no name, whether all are."""
        entries = [self._entry(name)] if name else list(self._entries.values())
        return all(entry.current is not None for entry in entries)

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model, as the protocol has them.

        Args:
            ready: only those that are loaded.
        """
        found = []
        for name, entry in self._entries.items():
            served = entry.current
            if served is None and ready:
                continue
            found.append(
                {
                    "name": name,
                    "version": "" if served is None else served.version,
                    "state": "UNAVAILABLE" if served is None else "READY",
                    "reason": entry.reason,
                }
            )
        return found

    def close(self) -> None:
        """Unload all models; waits for what they still run."""
        for entry in self._entries.values():
            with self._lock:
                old, entry.current, entry.reason = entry.current, None, "the server stops"
                if old is not None:
                    entry.users[old] += 1  # closed here, not by the last request
            if old is not None:
                old.close()

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise RequestError(
                f"there is no model {name[:200]!r}; models: {', '.join(self._entries)}", 404
            )
        return entry

    def _retire(self, entry: _Entry, old: Served) -> None:
        _log.info("model %r: version %s is no longer served", old.name, old.version)
        self._close_unused(entry, old)

    def _close_unused(self, entry: _Entry, served: Served) -> None:
        """Close a version that is neither served nor used."""
        with self._lock:
            if served is entry.current or entry.users.get(served) != 0:
                return
            del entry.users[served]
        # It ends what runs: not for the thread of a request.
        closing = threading.Thread(target=served.close, name=f"close-{served.name}", daemon=True)
        try:
            start(closing)
        except NarrowpassError:  # better late than never
            served.close()


async def watch(repository: Repository, every: float) -> None:
    """Look at the files of the loaded models, and load what was replaced; never returns.

    A replacement that cannot be loaded is a warning: what was served still is.

    Args:
        repository: whose models.
        every: seconds between two looks.
    """
    while True:
        await asyncio.sleep(every)
        for name in await asyncio.to_thread(repository.changed):
            try:
                served = await asyncio.to_thread(repository.load, name)
            except Exception as error:  # noqa: BLE001  # the next look must come, whatever this was
                _log.warning("model %r was replaced, but the former one is served: %s", name, error)
            else:
                _log.info("model %r was replaced; version %s is served", name, served.version)
