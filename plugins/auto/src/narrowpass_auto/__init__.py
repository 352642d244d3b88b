"""Types that a model may have within an error: the pass ``auto``, and ``narrowpass tune``.

This is the plugin's entry module. It imports neither onnx nor numpy; what does the work is imported
when a hook is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass import Pass

__all__ = ["narrowpass_commands", "narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the pass ``auto``."""
    from narrowpass_auto.auto import Auto

    return [Auto]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass tune``."""
    from narrowpass_auto.command import tune

    return [tune]
