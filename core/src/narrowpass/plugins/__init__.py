"""Plugins: the hooks that they implement, how they are found, and what they register.

Pluggy is used nowhere outside this package.
"""

from __future__ import annotations

from narrowpass.plugins.hookspecs import hookimpl
from narrowpass.plugins.loading import PluginInfo, Plugins, load_plugins
from narrowpass.plugins.registry import Registry

__all__ = ["PluginInfo", "Plugins", "Registry", "hookimpl", "load_plugins"]
