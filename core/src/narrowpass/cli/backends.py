"""``narrowpass backends``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from narrowpass.cli._options import json_option
from narrowpass.cli._output import print_json, print_table
from narrowpass.cli._state import State, pass_state
from narrowpass.errors import NarrowpassError, PluginError

if TYPE_CHECKING:
    from collections.abc import Collection

    from narrowpass.backend import Backend


@click.command()
@json_option
@pass_state
def backends(state: State, as_json: bool) -> None:
    """List the backends and whether each can run here.

    The JSON document has the key backends: name, owner, priority, default, available, reason
    (why not, else null) and default_pipeline of each, the highest priority first.
    """
    registry = state.registry
    try:
        default = registry.backend().name
    except PluginError:  # none can run here: the list says why
        default = ""
    passes = {*registry.passes, *registry.pipelines}
    rows = []
    for backend in sorted(registry.backends.values(), key=lambda b: (-b.priority, b.name)):
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
            }
        )
    if as_json:
        print_json({"backends": rows})
        return
    print_table(
        ("backend", "owner", "priority", "available", "default pipeline"),
        [
            (
                f"{row['name']}{' (default)' if row['default'] else ''}",
                str(row["owner"]),
                str(row["priority"]),
                "yes" if row["reason"] is None else f"no: {row['reason']}",
                str(row["default_pipeline"]),
            )
            for row in rows
        ],
        right=(2,),
    )


def _default_pipeline(backend: Backend, passes: Collection[str]) -> str:
    """Give a backend's default pipeline; a backend that has a defect does not hide the others."""
    try:
        return backend.default_pipeline(passes)
    except NarrowpassError as error:
        logging.getLogger("narrowpass").warning("%s", error)
        return ""
