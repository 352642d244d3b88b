"""A server of bundles: the Open Inference Protocol, and OpenAI's completions where they generate.

This is the plugin's entry module, and the public one. It imports neither onnx nor numpy: a name is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass_serve.app import create_app
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.models.sources import Source, find_sources
    from narrowpass_serve.settings import Settings

_HOME = {
    "Metrics": "metrics",
    "Repository": "models.repository",
    "Settings": "settings",
    "Source": "models.sources",
    "create_app": "app",
    "find_sources": "models.sources",
}

__all__ = [
    "Metrics",
    "Repository",
    "Settings",
    "Source",
    "create_app",
    "find_sources",
    "narrowpass_commands",
]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass serve``."""
    from narrowpass_serve.command import serve

    return [serve]


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
