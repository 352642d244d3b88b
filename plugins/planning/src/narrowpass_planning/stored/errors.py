"""Why a compiled method is not stored, or not restored: never an error for users."""

from __future__ import annotations


class NotStorableError(Exception):
    """A compiled method has something that the format does not: it is planned in each process."""


class StaleError(Exception):
    """A stored method needs what is not there, such as weights that are not packed yet."""
