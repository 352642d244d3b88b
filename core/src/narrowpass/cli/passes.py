"""``narrowpass passes``."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json, print_table
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.boundary import foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from narrowpass.framework.options import HasOptions
    from narrowpass.framework.passes import Pass
    from narrowpass.framework.plugins import Registry


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@pass_state
def passes(state: State, names: tuple[str, ...], as_json: bool) -> None:
    """List passes, pipelines, instruments and classifiers.

    Only those that are named, if any are, and then with what each option does.

    The JSON document has the keys passes and instruments (name, owner, about, options: name, type,
    default and about of each; passes also requires, forbids and parts), pipelines (name, owner,
    text) and classifiers (name, owner).
    """
    registry = state.registry
    document: dict[str, list[dict[str, Any]]] = {
        "passes": [
            {
                **_described(registry, "passes", name, cls),
                "requires": list(cls.requires),
                "forbids": list(cls.forbids),
                "parts": _parts(cls),
            }
            for name, cls in sorted(registry.passes.items())
        ],
        "pipelines": [
            {"name": name, "owner": registry.owner("pipelines", name), "text": text}
            for name, text in sorted(registry.pipelines.items())
        ],
        "instruments": [
            _described(registry, "instruments", name, cls)
            for name, cls in sorted(registry.instruments.items())
        ],
        "classifiers": [
            {"name": name, "owner": registry.owner("classifiers", name)}
            for name in sorted(registry.classifiers)
        ],
    }
    if names:
        document = _only(names, document, registry)
    if as_json:
        print_json(document)
        return
    _print(document, everything=not names)


def _only(
    names: tuple[str, ...], document: Mapping[str, list[dict[str, Any]]], registry: Registry
) -> dict[str, list[dict[str, Any]]]:
    """Give what the names select, whatever its kind."""
    known = {row["name"]: row for rows in document.values() for row in rows}
    for name in names:
        if name not in known:
            raise UsageError(registry.unknown("pass", name, known))
    return {kind: [row for row in rows if row["name"] in names] for kind, rows in document.items()}


def _described(registry: Registry, kind: str, name: str, cls: type[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "owner": registry.owner(kind, name),
        "about": (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`"),
        "options": _options(cls),
    }


def _parts(cls: type[Pass]) -> list[str]:
    """Give the text of the passes that one is made of, with its default options."""
    from narrowpass.framework.fixed_point import FixedPoint

    if not issubclass(cls, FixedPoint):
        return []
    try:
        with foreign(f"the parts of pass {cls.name!r} cannot be listed", PluginError):
            return [str(part) for part in cls().parts()]
    except PluginError as error:
        logging.getLogger("narrowpass").warning("%s", error)
        return []


def _options(cls: type[HasOptions]) -> list[dict[str, str]]:
    """Give name, type, default and note of each option, as they stand in pipeline text."""
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


def _print(document: Mapping[str, list[dict[str, Any]]], *, everything: bool) -> None:
    """Print a table of each kind, and of the options; kinds of which there are none are left out.

    Where everything is listed, the lack of passes is worth a word.
    """
    blocks: list[Callable[[], None]] = []
    if everything and not document["passes"]:
        hint = "no passes are installed; the plugin narrowpass-constant-folding has some"
        blocks.append(partial(click.echo, hint))
    for title, kind in (("pass", "passes"), ("instrument", "instruments")):
        rows = document[kind]
        blocks += _table((title, "owner", "what it does"), rows, ("name", "owner", "about"))
        options = [{**option, "of": row["name"]} for row in rows for option in row["options"]]
        # Notes are long, and the more so those of all passes.
        noted = not everything and any(option["about"] for option in options)
        columns = ("of", "name", "type", "default", "about")[: 5 if noted else 4]
        titles = (title, "option", "takes", "default", "what it does")[: len(columns)]
        blocks += _table(titles, options, columns)
        notes = [note for row in rows for note in _notes(row)]
        if notes:
            blocks.append(partial(click.echo, "\n".join(notes)))
    blocks += _table(
        ("named pipeline", "owner", "text"), document["pipelines"], ("name", "owner", "text")
    )
    blocks += _table(("classifier", "owner"), document["classifiers"], ("name", "owner"))
    for index, block in enumerate(blocks):
        if index:
            click.echo()
        block()


def _table(
    titles: Sequence[str], rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> list[Callable[[], None]]:
    """Give what prints a table of the columns; nothing where there are no rows."""
    cells = [tuple(str(row[column]) for column in columns) for row in rows]
    return [partial(print_table, titles, cells)] if cells else []


def _notes(row: Mapping[str, Any]) -> list[str]:
    """Give sentences on how a pass stands to others."""
    notes = [
        f"{row['name']} must stand {word} {', '.join(row[key])}"
        for key, word in (("requires", "after"), ("forbids", "not after"))
        if row.get(key)
    ]
    if row.get("parts"):
        notes.append(f"{row['name']} runs until nothing changes: {', '.join(row['parts'])}")
    return notes
