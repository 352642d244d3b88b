"""``narrowpass passes``."""

from __future__ import annotations

import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli._described import describe_options, option_blocks, table_blocks
from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.boundary import translate_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """Return what the names select, whatever its kind."""
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
        "options": describe_options(cls),
    }


def _parts(cls: type[Pass]) -> list[str]:
    """Return the text of the passes that one consists of, with its default options."""
    from narrowpass.framework.fixed_point import FixedPoint

    if not issubclass(cls, FixedPoint):
        return []
    try:
        with translate_errors(f"the parts of pass {cls.name!r} cannot be listed", PluginError):
            return [str(part) for part in cls().parts()]
    except PluginError as error:
        logging.getLogger("narrowpass").warning("%s", error)
        return []


def _print(document: Mapping[str, list[dict[str, Any]]], *, everything: bool) -> None:
    """Print a table of each kind, and of the options; kinds of which there are none are left out.

    Where everything is listed, the lack of passes is worth a word.
    """
    blocks: list[Callable[[], None]] = []
    if everything and not document["passes"]:
        hint = "no passes are installed; the repository's README has the command that installs them"
        blocks.append(partial(click.echo, hint))
    for title, kind in (("pass", "passes"), ("instrument", "instruments")):
        rows = document[kind]
        blocks += table_blocks((title, "owner", "what it does"), rows, ("name", "owner", "about"))
        # Notes are long, and the more so those of all passes.
        blocks += option_blocks(title, rows, notes=not everything)
        notes = [note for row in rows for note in _notes(row)]
        if notes:
            blocks.append(partial(click.echo, "\n".join(notes)))
    blocks += table_blocks(
        ("named pipeline", "owner", "text"), document["pipelines"], ("name", "owner", "text")
    )
    blocks += table_blocks(("classifier", "owner"), document["classifiers"], ("name", "owner"))
    for index, block in enumerate(blocks):
        if index:
            click.echo()
        block()


def _notes(row: Mapping[str, Any]) -> list[str]:
    """Return sentences on how a pass stands to others."""
    notes = [
        f"{row['name']} must stand {word} {', '.join(row[key])}"
        for key, word in (("requires", "after"), ("forbids", "not after"))
        if row.get(key)
    ]
    if row.get("parts"):
        notes.append(f"{row['name']} runs until nothing changes: {', '.join(row['parts'])}")
    return notes
