"""``narrowpass plugins``: imports entry modules and calls no hook, so that it is fast."""

from __future__ import annotations

import dataclasses

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json, visible
from narrowpass.cli.state import State, pass_state


@click.command()
@json_option
@pass_state
def plugins(state: State, as_json: bool) -> None:
    """List the installed plugins and what became of each.

    The JSON document has the key plugins: name, distribution, module, status (loaded, disabled or
    failed), error and hooks of each.
    """
    infos = state.plugins.infos
    if as_json:
        print_json({"plugins": [dataclasses.asdict(info) for info in infos]})
        return
    if not infos:
        click.echo(
            "no plugins are installed; the repository's README has the command that installs them"
        )
        return
    width = max(len(visible(info.name)) for info in infos)
    distribution = max(len(visible(info.distribution)) for info in infos)
    colors = {"loaded": "green", "disabled": "yellow", "failed": "red"}
    for info in infos:
        hooks = ", ".join(hook.removeprefix("narrowpass_") for hook in info.hooks)
        status = click.style(f"{info.status:<8}", fg=colors.get(info.status))
        name = f"{visible(info.name):<{width}}  {visible(info.distribution):<{distribution}}"
        click.echo(f"{name}  {status}  {hooks}".rstrip())
        if info.error:
            click.echo(f"{'':<{width}}  {visible(info.error)}")
