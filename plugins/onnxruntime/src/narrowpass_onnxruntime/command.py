"""The command ``narrowpass onnxruntime``: the provider in programs that do not ask for it."""

from __future__ import annotations

import click

_venv_option = click.option(
    "--venv",
    metavar="FOLDER",
    default="current",
    show_default=True,
    help="The virtual environment whose programs are meant; `current` for this one.",
)


@click.group("onnxruntime")
def onnxruntime() -> None:
    """Run programs that call onnxruntime on narrowpass, without a change of their source."""


@onnxruntime.command()
@_venv_option
def enable(venv: str) -> None:
    """Put the provider in front of onnxruntime's CPU provider in an environment.

    Sessions that name other providers, such as those of GPUs, are left alone. The environment
    variable NARROWPASS_ONNXRUNTIME holds options, such as `threads=1;max_error=rel:1e-2`; 0 turns
    it off for one program.
    """
    from narrowpass_onnxruntime.provider import enabling

    click.echo(f"wrote {enabling.enable(venv)}")


@onnxruntime.command()
@_venv_option
def disable(venv: str) -> None:
    """Undo `enable`."""
    from narrowpass_onnxruntime.provider import enabling

    removed = enabling.disable(venv)
    click.echo("it was not enabled" if removed is None else f"removed {removed}")
