"""The backend that decides which results are right: all others are compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass.errors import PluginError
from narrowpass.framework.plugins import installed_plugins

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend

ORACLE = "reference"
"""The name under which the oracle is registered."""


def oracle() -> Backend:
    """Return the installed backend that computes every operator as the standard says.

    Raises:
        PluginError: none is installed.
    """
    registry = installed_plugins().registry
    if ORACLE not in registry.backends:
        missing = registry.unknown("backend", ORACLE, registry.backends)
        raise PluginError(f"{missing}; results are compared on it: install narrowpass-reference")
    return registry.backend(ORACLE)
