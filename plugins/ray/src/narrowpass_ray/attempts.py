"""Notes on shards that were begun, by which a row that ends its worker is found.

A worker that runs out of memory, or that a library ends by a signal, cannot report a row. So it
writes beforehand what it is about to do. The first attempt at a shard writes that it was begun;
after one that did not end, each batch is noted; a batch that ended two attempts is computed row by
row, and a row that ended two attempts is left out, with an error. A node that is lost meanwhile
costs an attempt, and changes no result.
"""

from __future__ import annotations

import json
from typing import Any

from narrowpass.errors import DataError
from narrowpass_ray.places import Place

FOLDER = "_attempts"
"""In the output, with a file for each shard that was begun and has not ended."""

DEADLY = 2
"""Attempts that a batch or row must have ended."""

LOST = (
    "the worker ended while it computed this row, in two attempts: it ran out of memory, or a "
    "library crashed; reserve more memory for an actor (`memory`), or cut the row off in "
    "`preprocess`"
)


class Attempts:
    """The notes on one shard.

    Attributes:
        count: attempts so far, with this one.
    """

    def __init__(self, place: Place) -> None:
        """Read the notes, and add that an attempt begins.

        Raises:
            OutputError: the notes cannot be written.
        """
        self._place = place
        self._deaths: dict[str, int] = {}
        self._at: str | None = None
        known = self._read()
        self.count = int(known.get("attempts", 0)) + 1
        self._deaths = {str(k): int(v) for k, v in known.get("deaths", {}).items()}
        last = known.get("at")
        if last is not None:
            self._deaths[last] = self._deaths.get(last, 0) + 1
        self._write()

    def begin(self, batch: int, row: int | None = None) -> None:
        """Note what is computed next; the first attempt notes nothing."""
        if self.count > 1:
            self._at = _key(batch, row)
            self._write()

    def is_deadly(self, batch: int, row: int | None = None) -> bool:
        """Return whether a batch, or a row of it, has ended two attempts."""
        return self._deaths.get(_key(batch, row), 0) >= DEADLY

    def end(self) -> None:
        """Delete the notes: the shard is written."""
        self._place.delete()

    def _read(self) -> dict[str, Any]:
        try:
            data = self._place.read()
            known: object = json.loads(data) if data else {}
        except (DataError, ValueError):
            return {}  # cut off when a node was lost: as if there had been no attempt
        return known if isinstance(known, dict) else {}

    def _write(self) -> None:
        notes = {"attempts": self.count, "at": self._at, "deaths": self._deaths}
        self._place.write(json.dumps(notes).encode(), durable=False)


def _key(batch: int, row: int | None) -> str:
    return str(batch) if row is None else f"{batch}/{row}"
