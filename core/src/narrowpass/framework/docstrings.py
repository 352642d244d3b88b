"""What docstrings say of the fields of a class, for listings and for the reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping


def attribute_notes(cls: type) -> Mapping[str, str]:
    """Return what the ``Attributes:`` sections of a class and its bases say of each field.

    Each in one line, with literals in single backticks.
    """
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        found = re.findall(
            r"^    (\w+): (.*(?:\n {8}.*)*)", section.split("\n\n", 1)[0], re.MULTILINE
        )
        notes.update((name, ticks(" ".join(text.split()))) for name, text in found)
    return notes


def ticks(text: str) -> str:
    """Turn literals of reStructuredText into those of Markdown."""
    return re.sub(r"(?<!`)``(?!`)(.+?)(?<!`)``(?!`)", r"`\1`", text)
