"""What is shown of the options that a class of a plugin has: a pass, an instrument, a backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from narrowpass.cli.output import print_table

if TYPE_CHECKING:
    from narrowpass.framework.options import HasOptions


def describe_options(cls: type[HasOptions]) -> list[dict[str, str]]:
    """Return name, type, default and note of each option, as they stand in pipeline text."""
    from narrowpass.framework.docstrings import attribute_notes
    from narrowpass.framework.options import default_text, describe_type, option_types

    types = option_types(cls)
    notes = attribute_notes(cls)
    rows = []
    for field in dataclasses.fields(cls):
        name = field.name.replace("_", "-")
        if name not in types:
            continue
        rows.append(
            {
                "name": name,
                "type": describe_type(types[name]),
                "default": default_text(field),
                "about": notes.get(field.name, ""),
            }
        )
    return rows


def option_blocks(
    title: str, rows: Sequence[Mapping[str, Any]], *, notes: bool
) -> list[Callable[[], None]]:
    """Return what prints a table of all options of `rows`; nothing where there are none.

    Args:
        title: of the column with the names of the rows.
        rows: each with ``name`` and the ``options`` of `describe_options`.
        notes: whether to print what each option does.
    """
    options = [{**option, "of": row["name"]} for row in rows for option in row["options"]]
    noted = notes and any(option["about"] for option in options)
    columns = ("of", "name", "type", "default", "about")[: 5 if noted else 4]
    titles = (title, "option", "takes", "default", "what it does")[: len(columns)]
    return table_blocks(titles, options, columns)


def table_blocks(
    titles: Sequence[str], rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> list[Callable[[], None]]:
    """Return what prints a table of the columns; nothing where there are no rows."""
    cells = [tuple(str(row[column]) for column in columns) for row in rows]
    return [partial(print_table, titles, cells)] if cells else []
