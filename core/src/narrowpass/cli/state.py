"""What all commands share: the options of the group, and the plugins, loaded when first used."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import click

from narrowpass.cli.output import visible
from narrowpass.errors import PluginError
from narrowpass.framework.plugins import PluginInfo, Plugins, Registry, load_plugins
from narrowpass_ir.arguments import suggest

F = TypeVar("F", bound=Callable[..., Any])


class State:
    """The options before the command's name, and what they lead to.

    Attributes:
        disabled: names or globs of plugins to leave out.
        quiet: whether notes are left out.
    """

    def __init__(self, disabled: tuple[str, ...] = (), *, quiet: bool = False) -> None:
        self.disabled = disabled
        self.quiet = quiet
        self._reported: set[str] = set()

    @classmethod
    def of(cls, ctx: click.Context) -> State:
        """Return the state of a command's context; created when it is first asked for."""
        root = ctx.find_root()
        if not isinstance(root.obj, State):
            params = root.params
            root.obj = cls(tuple(params.get("disabled") or ()), quiet=bool(params.get("quiet")))
        return root.obj

    @functools.cached_property
    def plugins(self) -> Plugins:
        """The installed plugins; no hook is called.

        Raises:
            PluginError: ``--disable-plugin`` names one that is not installed.
        """
        plugins = load_plugins(self.disabled)
        names = [info.name for info in plugins.infos]
        for pattern in plugins.unmatched:
            if any(sign in pattern for sign in "*?["):
                continue  # a glob may match nothing
            if pattern in self.disabled:
                raise PluginError(
                    f"--disable-plugin {pattern}: no such plugin{suggest(pattern, names)}; "
                    f"installed: {', '.join(names) or 'none'}"
                )
            logging.getLogger("narrowpass").warning(
                "NARROWPASS_DISABLE_PLUGINS names %r, which is not installed", pattern
            )
        return plugins

    @functools.cached_property
    def registry(self) -> Registry:
        """What is installed, with the named pipelines of the project around."""
        from narrowpass.framework.config import registry_for

        registry = registry_for(self.plugins)
        self._report(registry.failed)
        return registry

    @property
    def commands(self) -> Mapping[str, click.Command]:
        """The commands of plugins by name. No other hooks are called: the help has to come soon."""
        registry = self.plugins.registry
        found = dict(registry.commands)
        self._report(registry.failed_so_far)
        return found

    def _report(self, failed: Mapping[str, PluginInfo]) -> None:
        """Warn of plugins that cannot be used, once of each."""
        for info in failed.values():
            if info.name not in self._reported:
                self._reported.add(info.name)
                logging.getLogger("narrowpass").warning(
                    "plugin %r of %s is left out: %s", info.name, info.distribution, info.error
                )

    def note(self, text: str) -> None:
        """Print a line that is no result to standard error."""
        if not self.quiet:
            click.echo(f"narrowpass: {visible(text)}", err=True)


def pass_state(function: F) -> F:
    """Pass the state to a command's function as its first argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(State.of(click.get_current_context()), *args, **kwargs)

    return cast("F", wrapper)
