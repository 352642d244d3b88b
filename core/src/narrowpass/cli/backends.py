"""``narrowpass backends``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli._described import describe_options, option_blocks
from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json, print_table
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import NarrowpassError, PluginError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from narrowpass.runtime.backend import Backend


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@pass_state
def backends(state: State, names: tuple[str, ...], as_json: bool) -> None:
    """List the backends and whether each can run here.

    Only those that are named, if any are, and then with what each option does.

    The JSON document has the key backends: name, owner, priority, default, available, reason
    (why not, else null), default_pipeline, details (what it runs on here) and options (name, type,
    default and about) of each, the highest priority first.
    """
    registry = state.registry
    try:
        default = registry.backend().name
    except PluginError:  # none can run here: the list says why
        default = ""
    for name in names:
        if name not in registry.backends:
            raise UsageError(registry.unknown("backend", name, registry.backends))
    passes = {*registry.passes, *registry.pipelines}
    rows: list[dict[str, Any]] = []
    for backend in sorted(registry.backends.values(), key=lambda b: (-b.priority, b.name)):
        if names and backend.name not in names:
            continue
        reason = backend.available()
        rows.append(
            {
                "name": backend.name,
                "owner": registry.owner("backends", backend.name),
                "priority": backend.priority,
                "default": backend.name == default,
                "available": reason is None,
                "reason": reason,
                "default_pipeline": _default_pipeline(backend, passes),
                "details": _details(backend) if reason is None else {},
                "options": describe_options(type(backend)),
            }
        )
    if as_json:
        print_json({"backends": rows})
        return
    print_table(
        ("backend", "owner", "priority", "available", "default pipeline", "details"),
        [
            (
                f"{row['name']}{' (default)' if row['default'] else ''}",
                str(row["owner"]),
                str(row["priority"]),
                "yes" if row["reason"] is None else f"no: {row['reason']}",
                str(row["default_pipeline"]),
                ", ".join(f"{name} {text}" for name, text in row["details"].items()),
            )
            for row in rows
        ],
        right=(2,),
    )
    for block in option_blocks("backend", rows, notes=bool(names)):
        click.echo()
        block()


def _default_pipeline(backend: Backend, passes: Collection[str]) -> str:
    """Return a backend's default pipeline; a backend that has a defect does not hide the others."""
    try:
        return backend.default_pipeline(passes)
    except NarrowpassError as error:
        logging.getLogger("narrowpass").warning("%s", error)
        return ""


def _details(backend: Backend) -> dict[str, str]:
    """Return what a backend runs on; a backend that has a defect does not hide the others."""
    try:
        return dict(backend.details())
    except NarrowpassError as error:
        logging.getLogger("narrowpass").warning("%s", error)
        return {}
