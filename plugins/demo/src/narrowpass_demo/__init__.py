"""The main job on a small real model: build a digit classifier, run it, and measure.

The model and the images, which it was not trained on, are part of the package; `train_digits.py`
wrote both. `run` has what the command prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["narrowpass_commands"]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass demo``."""
    from narrowpass_demo.command import demo

    return [demo]
