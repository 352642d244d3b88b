"""Models compared, measured, and held to a tolerance: two commands, and a library for passes.

This is the plugin's entry module, which imports neither onnx nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["narrowpass_commands"]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass bench`` and ``narrowpass compare``."""
    from narrowpass_analysis.bench import bench
    from narrowpass_analysis.compare import compare

    return [bench, compare]
