"""What the loaded plugins register, by name, and who registered it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.classify import OpClassifier
from narrowpass.framework.instruments import Instrument
from narrowpass.framework.options import suggest
from narrowpass.framework.passes import Pass
from narrowpass.framework.pipeline_text import construct_item, parse_item, with_caret
from narrowpass.framework.plugins.checks import named
from narrowpass.runtime.backend import Backend, BackendLike

if TYPE_CHECKING:
    import click

    from narrowpass.framework.plugins.info import PluginInfo
    from narrowpass.framework.reports import ReportWriter
    from narrowpass_ir.importing import Importer

T = TypeVar("T")

_log = logging.getLogger("narrowpass")


@dataclass(frozen=True)
class Contribution:
    """What one plugin registers: objects by kind and name."""

    plugin: str
    distribution: str
    items: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, plugin: str, distribution: str, results: Mapping[str, Any]) -> Contribution:
        """Check what the hooks of one plugin gave back.

        Args:
            plugin: the entry point's name.
            distribution: name and version of the distribution.
            results: what each hook gave, by the hook's name.

        Raises:
            PluginError: something that is not of the kind that the hook returns.
        """
        items: dict[str, Mapping[str, Any]] = {}
        for hook, result in results.items():
            kind = hook.removeprefix("narrowpass_")
            items[kind] = named(hook, result)
        return cls(plugin, distribution, items)


@dataclass(frozen=True)
class Registry:
    """Everything that is installed, by name.

    Attributes:
        passes: pass types.
        classifiers: op classifiers.
        backends: backends, those that cannot run here included.
        instruments: instrument types.
        pipelines: text of named pipelines.
        commands: commands that plugins add to the command line.
        reports: report writers.
        importers: what reads models of other formats than ONNX.
        owners: the distribution, with its version, that registered a thing, by (kind, name);
            kinds are the names of the attributes above.
        failed: plugins that could not be used, by name.
    """

    passes: Mapping[str, type[Pass]] = field(default_factory=dict)
    classifiers: Mapping[str, OpClassifier] = field(default_factory=dict)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    instruments: Mapping[str, type[Instrument]] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, click.Command] = field(default_factory=dict)
    reports: Mapping[str, ReportWriter] = field(default_factory=dict)
    importers: Mapping[str, Importer] = field(default_factory=dict)
    owners: Mapping[tuple[str, str], str] = field(default_factory=dict)
    failed: Mapping[str, PluginInfo] = field(default_factory=dict)

    def owner(self, kind: str, name: str) -> str:
        """Return the distribution and version that registered a thing; empty for none."""
        return self.owners.get((kind, name), "")

    def unknown(self, kind: str, name: str, known: Mapping[str, object]) -> str:
        """Return the message for a `name` that is not installed; it lists what is."""
        listing = ", ".join(sorted(known)) or "none"
        hint = suggest(name, known) or "; install the plugin that has it"
        text = f"no {kind} {name!r} is installed{hint}; installed: {listing}"
        if self.failed:
            broken = "; ".join(f"{info.name}: {info.error}" for info in self.failed.values())
            text += f" (plugins that failed to load: {broken})"
        return text

    def backend(self, name: BackendLike | None = None, *, must_run: bool = True) -> Backend:
        """Return the backend that is named; None for the available one of highest priority.

        Args:
            name: a name, with options where those are not the defaults:
                ``name{option=value}``; or the backend itself.
            must_run: whether a backend that cannot run on this machine is an error.

        Raises:
            UsageError: neither text nor a backend.
            PipelineError: text that does not parse, an unknown option, or a value that does not
                fit; a caret stands under it.
            PluginError: it is not installed, or not available on this machine where it must run.
        """
        if name is None:
            return self._best_backend()
        if not isinstance(name, str | Backend):
            raise UsageError(
                f"a backend is given by its name, such as 'name{{option=value}}', or as a "
                f"narrowpass.Backend, not as {type(name).__name__}; installed: "
                f"{', '.join(sorted(self.backends))}"
            )
        chosen = self._parse_backend(name) if isinstance(name, str) else name
        reason = chosen.available() if must_run else None
        if reason is not None:
            raise PluginError(f"backend {chosen.name!r} is not available here: {reason}")
        return chosen

    def _parse_backend(self, text: str) -> Backend:
        """Return the backend of text: the one that is registered, where it has no options."""
        item = parse_item(text, "backend")
        if item.name not in self.backends:
            message = self.unknown("backend", item.name, self.backends)
            raise PluginError(with_caret(text, item.start, message) if item.options else message)
        registered = self.backends[item.name]
        return construct_item(text, item, type(registered)) if item.options else registered

    def _best_backend(self) -> Backend:
        """Return the available backend of highest priority; warn of those that would come first."""
        missing = []
        for backend in sorted(self.backends.values(), key=lambda b: (-b.priority, b.name)):
            reason = backend.available()
            if reason is not None:
                missing.append(f"backend {backend.name!r} is not available here: {reason}")
                continue
            for message in missing:
                _log.warning("%s; %r is used in its place", message, backend.name)
            return backend
        raise PluginError("no backend is available; `narrowpass backends` says why")

    def with_pipelines(self, texts: Mapping[str, str], owner: str) -> Registry:
        """Return a registry with more named pipelines, such as those of a configuration file.

        Raises:
            PluginError: a name that is taken.
        """
        more = Contribution(owner, owner, {"pipelines": dict(texts)})
        return _add(self, more)


def build_registry(
    contributions: Sequence[Contribution], failed: Mapping[str, PluginInfo]
) -> Registry:
    """Merge what the plugins register.

    Raises:
        PluginError: a name given twice to things of one kind; both distributions are named.
    """
    registry = Registry(failed=dict(failed))
    for contribution in contributions:
        registry = _add(registry, contribution)
    return registry


def _add(registry: Registry, contribution: Contribution) -> Registry:
    owners = dict(registry.owners)
    merged: dict[str, dict[str, Any]] = {}
    for kind, items in contribution.items.items():
        for name in items:
            # A pass and a named pipeline share one name space: either may stand in the text.
            kinds = ("passes", "pipelines") if kind in ("passes", "pipelines") else (kind,)
            for other in kinds:
                if (other, name) in owners:
                    raise PluginError(
                        f"{name!r} ({kind}) comes from both {owners[other, name]} and "
                        f"{contribution.distribution}; leave one out with --disable-plugin "
                        f"or uninstall it"
                    )
            owners[kind, name] = contribution.distribution
        merged[kind] = {**getattr(registry, kind), **items}
    return dataclasses.replace(registry, owners=owners, **merged)
