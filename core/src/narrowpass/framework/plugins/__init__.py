"""Plugins: the hooks that they implement, how they are found, and what they register.

Pluggy is used nowhere outside this package.
"""

from __future__ import annotations

from narrowpass.framework.plugins.hookspecs import hookimpl
from narrowpass.framework.plugins.loading import (
    Plugins,
    installed_plugins,
    load_plugins,
)
from narrowpass.framework.plugins.registry import PluginInfo, Registry

__all__ = ["PluginInfo", "Plugins", "Registry", "hookimpl", "installed_plugins", "load_plugins"]
