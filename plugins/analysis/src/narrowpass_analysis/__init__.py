"""Commands that inspect, run, compare and time models, and the library of metrics for passes.

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
    """Register the commands."""
    from narrowpass_analysis.bench import bench
    from narrowpass_analysis.compare import compare
    from narrowpass_analysis.convert import convert
    from narrowpass_analysis.explain import explain
    from narrowpass_analysis.inspect import inspect
    from narrowpass_analysis.new_plugin.command import new_plugin
    from narrowpass_analysis.replay import replay
    from narrowpass_analysis.run import run

    return [bench, compare, convert, explain, inspect, new_plugin, replay, run]
