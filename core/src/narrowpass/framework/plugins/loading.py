"""Finding and importing plugins, one at a time, in name order.

A plugin that cannot be used is listed with its error and stops nothing else.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.metadata
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass.framework.plugins import hookspecs
from narrowpass.framework.plugins.registry import PluginInfo, Registry, Source, build_registry
from narrowpass_ir.arguments import instance_of, kind_of, names_of, suggest

if TYPE_CHECKING:
    from narrowpass.framework.instruments import Instrument

DISABLE_VARIABLE = "NARROWPASS_DISABLE_PLUGINS"
"""Environment variable: names or globs of plugins to leave out, separated by commas."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(.*?)\s*", re.DOTALL)
"""The name that a requirement begins with, and the rest."""

_SPECIFIERS = re.compile(r"[<>=!~][^;@\[(]*")
"""Versions alone, without extras, an address or a marker."""

_POINTS = "a list of importlib.metadata.EntryPoint, or None"


class EntryPoint(Protocol):
    """What is used of `importlib.metadata.EntryPoint`."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> str: ...  # noqa: D102
    @property
    def dist(self) -> importlib.metadata.Distribution | None: ...  # noqa: D102
    def load(self) -> Any: ...  # noqa: D102


class Plugins:
    """The plugins of one process: a value that is passed on, never a global.

    Attributes:
        infos: all plugins that were found, in name order.
        unmatched: names given as disabled that no installed plugin has.
    """

    def __init__(
        self,
        infos: tuple[PluginInfo, ...],
        manager: pluggy.PluginManager,
        unmatched: tuple[str, ...] = (),
    ) -> None:
        self.infos = infos
        self.unmatched = unmatched
        self._manager = manager

    @functools.cached_property
    def registry(self) -> Registry:
        """What the loaded plugins register. Each hook is called once, when its kind is first read.

        A plugin whose hook raises, or returns something of the wrong kind, registers nothing more;
        `Registry.failed` has its error. Where two plugins use one name for two things of one kind,
        reading that kind raises `PluginError`.

        Raises:
            PluginError: two plugins share an entry-point name; both distributions are named.
        """
        by_name: dict[str, PluginInfo] = {}
        for info in self.infos:
            if info.status == "disabled":
                continue
            other = by_name.setdefault(info.name, info)
            if other is not info:
                raise PluginError(
                    f"two plugins are called {info.name!r}: {other.distribution} and "
                    f"{info.distribution}; uninstall one of them"
                )
        failed = {info.name: info for info in self.infos if info.status == "failed"}
        loaded = [info for info in self.infos if info.status == "loaded"]
        return build_registry([_builtin(), *map(self._source, loaded)], failed)

    def _source(self, info: PluginInfo) -> Source:
        """Return the hooks of one plugin."""
        plugin = self._manager.get_plugin(info.name)
        hooks: dict[str, Callable[[], Any]] = {}
        for hook in info.hooks:
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                if implementation.plugin is plugin:
                    hooks[_kind(hook)] = implementation.function
        return Source(info, hooks)


def _builtin() -> Source:
    """What narrowpass itself registers: the instruments that options of ``build`` stand for."""
    own = f"narrowpass {_own_version()}"
    info = PluginInfo(hookspecs.PROJECT, own, "narrowpass.framework.instruments", "loaded")
    return Source(info, {"instruments": _standard_instruments})


def _standard_instruments() -> list[type[Instrument]]:
    from narrowpass.framework.instruments import standard
    from narrowpass.framework.instruments.reproducer import Reproducer

    return [
        standard.Dump,
        standard.PrintAfterChange,
        Reproducer,
        standard.Statistics,
        standard.Timing,
    ]


def _kind(hook: str) -> str:
    return hook.removeprefix(f"{hookspecs.PROJECT}_")


def _own_version() -> str:
    return importlib.metadata.version(hookspecs.PROJECT)


def load_plugins(
    disabled: Sequence[str] = (), entry_points: Iterable[EntryPoint] | None = None
) -> Plugins:
    """Find and import the installed plugins. No hook is called.

    Args:
        disabled: names or globs (`fnmatch`) of plugins that are not to be imported, beside those
            that the environment variable ``NARROWPASS_DISABLE_PLUGINS`` lists.
        entry_points: what to load; None for the installed entry points of group ``narrowpass``.

    Returns:
        The plugins, those that failed included.

    Raises:
        UsageError: arguments of another type.
    """
    disabled = names_of(disabled, "`disabled`")
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=hookspecs.PROJECT)
    entry_points = list(instance_of(entry_points, Iterable, "`entry_points`", _POINTS))
    for point in entry_points:
        if not hasattr(point, "load"):
            raise UsageError(f"`entry_points` cannot have {kind_of(point)}; pass {_POINTS}")
    environment = os.environ.get(DISABLE_VARIABLE, "").split(",")
    patterns = [*disabled, *filter(None, map(str.strip, environment))]
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    # Each look at a distribution parses its metadata anew.
    declared = [(point.name, _distribution_of(point), point) for point in entry_points]
    infos = []
    for name, distribution, point in sorted(declared, key=lambda item: item[:2]):
        info = PluginInfo(name, distribution, point.value, "loaded")
        if any(fnmatch.fnmatchcase(point.name, pattern) for pattern in patterns):
            infos.append(replace(info, status="disabled"))
            continue
        try:
            infos.append(replace(info, hooks=_register(manager, point)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the boundary to plugin code
            infos.append(replace(info, status="failed", error=sentence(error)))
    unmatched = tuple(
        pattern
        for pattern in patterns
        if not any(fnmatch.fnmatchcase(name, pattern) for name, _, _ in declared)
    )
    return Plugins(tuple(infos), manager, unmatched)


def installed_plugins() -> Plugins:
    """Return the installed plugins, found anew only where something may have been installed."""
    folders = tuple((folder, _changed(folder)) for folder in sys.path)
    # Who puts another function in its place, as tests do, means it.
    found_by = importlib.metadata.entry_points
    return _installed(found_by, folders, os.environ.get(DISABLE_VARIABLE, ""))


@functools.lru_cache(maxsize=1)
def _installed(
    _found_by: Callable[..., object], _folders: tuple[tuple[str, int], ...], _disabled: str
) -> Plugins:
    return load_plugins()


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  # it may be no path at all
    except OSError:
        return 0


def _distribution_of(point: EntryPoint) -> str:
    """Name the distribution that declares a plugin; its metadata may be damaged."""
    try:
        name, version = (point.dist.name, point.dist.version) if point.dist else (None, None)
    except (KeyError, OSError, ValueError, TypeError):
        name = version = None
    return f"{name} {version or 'of unknown version'}" if name else "unknown distribution"


def _register(manager: pluggy.PluginManager, point: EntryPoint) -> tuple[str, ...]:
    """Import one plugin and return the names of the hooks that it implements."""
    _check_requirement(point)
    if manager.has_plugin(point.name):
        raise PluginError(f"another distribution has a plugin called {point.name!r} too")
    plugin = point.load()
    hooks = _hooks_of(manager, plugin, point)
    manager.register(plugin, name=point.name)
    return hooks


def _hooks_of(manager: pluggy.PluginManager, plugin: Any, point: EntryPoint) -> tuple[str, ...]:
    """Return the hooks that `plugin` implements; misspelled and unmarked ones are errors."""
    known = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
    implemented = []
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None and not (
            name.startswith(f"{hookspecs.PROJECT}_") and inspect.isroutine(getattr(plugin, name))
        ):
            continue
        if name not in known:
            raise PluginError(
                f"{point.value} has a hook {name!r} that narrowpass does not know"
                f"{suggest(name, known)}"
            )
        if options is None:
            raise PluginError(f"{point.value}: mark {name!r} with @narrowpass.hookimpl")
        implemented.append(name)
    return tuple(sorted(implemented))


def _check_requirement(point: EntryPoint) -> None:
    """Refuse a plugin whose distribution asks for another version of narrowpass."""
    own = _own_version()
    for text in (point.dist.requires or ()) if point.dist else ():
        if not _accepts(text, own):
            raise PluginError(
                f"it requires {text}, but narrowpass {own} is installed; "
                "install matching versions of both"
            )


@functools.cache  # most plugins ask for the same versions
def _accepts(requirement: str, own: str) -> bool:
    """Return whether a requirement is met, or is on something else than narrowpass."""
    found = _REQUIREMENT.fullmatch(requirement)
    # What does not parse is a requirement on something else, too: the installer's business.
    if found is None or found[1].lower() != hookspecs.PROJECT or not found[2]:
        return True
    # The parser of whole requirements takes more time to import than the rest of the help.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if _SPECIFIERS.fullmatch(found[2]):
        try:
            return SpecifierSet(found[2]).contains(own, prereleases=True)
        except InvalidSpecifier:
            return True
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return True
    if parsed.marker and not parsed.marker.evaluate({"extra": ""}):
        return True
    return parsed.specifier.contains(own, prereleases=True)
