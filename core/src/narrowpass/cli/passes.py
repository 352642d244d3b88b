"""``narrowpass passes``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli._options import json_option
from narrowpass.cli._output import print_json, print_table
from narrowpass.cli._state import State, pass_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowpass.options import HasOptions
    from narrowpass.passes import Pass
    from narrowpass.plugins import Registry


@click.command()
@json_option
@pass_state
def passes(state: State, as_json: bool) -> None:
    """List passes, pipelines, instruments and classifiers.

    The JSON document has the keys passes and instruments (name, owner, about, options: name, type,
    default of each; passes also requires, forbids and parts), pipelines (name, owner, text) and
    classifiers (name, owner).
    """
    registry = state.registry
    document = {
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
    if as_json:
        print_json(document)
        return
    _print(document)


def _described(registry: Registry, kind: str, name: str, cls: type[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "owner": registry.owner(kind, name),
        "about": (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`"),
        "options": _options(cls),
    }


def _parts(cls: type[Pass]) -> list[str]:
    """Give the text of the passes that one is made of, with its default options."""
    from narrowpass.fixed_point import FixedPoint

    return [str(part) for part in cls().parts()] if issubclass(cls, FixedPoint) else []


def _options(cls: type[HasOptions]) -> list[dict[str, str]]:
    """Give name, type and default of each option, as they stand in pipeline text."""
    from narrowpass.options import describe_type, format_value, option_types

    types = option_types(cls)
    rows = []
    for field in dataclasses.fields(cls):
        name = field.name.replace("_", "-")
        if name not in types:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        given = default is not dataclasses.MISSING
        rows.append(
            {
                "name": name,
                "type": describe_type(types[name]),
                "default": format_value(default) if given else "",
            }
        )
    return rows


def _print(document: Mapping[str, Any]) -> None:
    if not document["passes"]:
        click.echo("no passes are installed; the plugin narrowpass-constant-folding has some")
    else:
        print_table(
            ("pass", "owner", "what it does"),
            [(row["name"], row["owner"], row["about"]) for row in document["passes"]],
        )
    for title, rows in (("pass", document["passes"]), ("instrument", document["instruments"])):
        if title == "instrument":
            click.echo()
            print_table(
                ("instrument", "owner", "what it does"),
                [(row["name"], row["owner"], row["about"]) for row in rows],
            )
        options = [
            (row["name"], option["name"], option["type"], option["default"])
            for row in rows
            for option in row["options"]
        ]
        if options:
            click.echo()
            print_table((title, "option", "takes", "default"), options)
    for row in document["passes"]:
        for key, word in (("requires", "after"), ("forbids", "not after")):
            if row[key]:
                click.echo(f"{row['name']} must stand {word} {', '.join(row[key])}")
        if row["parts"]:
            click.echo(f"{row['name']} runs these until nothing changes: {', '.join(row['parts'])}")
    if document["pipelines"]:
        click.echo()
        print_table(
            ("named pipeline", "owner", "text"),
            [(row["name"], row["owner"], row["text"]) for row in document["pipelines"]],
        )
    if document["classifiers"]:
        click.echo()
        print_table(
            ("classifier", "owner"),
            [(row["name"], row["owner"]) for row in document["classifiers"]],
        )
