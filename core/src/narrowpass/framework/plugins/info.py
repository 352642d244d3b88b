"""What is known of an installed plugin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin and what became of it.

    Attributes:
        name: the entry point's name.
        distribution: the distribution that declares it, with its version: ``dist 1.2``.
        module: what the entry point names.
        status: ``loaded``, ``disabled`` or ``failed``.
        error: why it failed, as a sentence; empty otherwise.
        hooks: the hooks that it implements, sorted.
    """

    name: str
    distribution: str
    module: str
    status: str
    error: str = ""
    hooks: tuple[str, ...] = ()
