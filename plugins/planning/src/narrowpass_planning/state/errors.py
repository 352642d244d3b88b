"""Errors of caches that are appended to in place."""

from __future__ import annotations

from narrowpass.errors import BackendError


class AppendError(BackendError):
    """A model whose caches cannot be appended to in place. The message says why."""


class CacheFullError(BackendError):
    """Caches have no room for the rows of a run.

    Attributes:
        rows: that they need room for.
    """

    def __init__(self, rows: int, room: int) -> None:
        super().__init__(f"{rows} rows do not fit caches of {room}")
        self.rows = rows
