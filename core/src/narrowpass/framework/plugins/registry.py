"""What the loaded plugins register, by name, and who registered it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass.framework.missing import provider_of
from narrowpass.framework.plugins.checks import check_pipeline, named
from narrowpass.framework.plugins.hookspecs import PROJECT
from narrowpass_ir.arguments import suggest

if TYPE_CHECKING:
    import click

    from narrowpass.framework.classify import OpClassifier
    from narrowpass.framework.context import Candidate
    from narrowpass.framework.instruments import Instrument
    from narrowpass.framework.passes import Pass
    from narrowpass.framework.reports import ReportWriter
    from narrowpass.runtime.backend import Backend, BackendLike
    from narrowpass_ir.importing import Importer

_log = logging.getLogger("narrowpass")

KINDS = (
    "passes",
    "pipelines",
    "classifiers",
    "backends",
    "instruments",
    "commands",
    "reports",
    "importers",
    "candidates",
)
"""What plugins register: the attributes of `Registry`, and the names of hooks."""


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


@dataclass(frozen=True)
class Source:
    """One plugin, whose hooks are called when something of their kind is first read.

    Attributes:
        info: of the plugin.
        hooks: by the kind of what they return: ``passes``, ``backends`` and so on.
    """

    info: PluginInfo
    hooks: Mapping[str, Callable[[], Any]]


class _Collected(Mapping[Any, Any]):
    """A mapping that is computed when it is first read."""

    def __init__(self, collect: Callable[[], Mapping[Any, Any]]) -> None:
        self._collect = collect

    def __getitem__(self, key: Any) -> Any:
        return self._collect()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._collect())

    def __len__(self) -> int:
        return len(self._collect())


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
        candidates: ways to narrow single nodes.
        owners: the distribution, with its version, that registered a thing, by (kind, name);
            `KINDS` are the names of the attributes above.
        failed: plugins that could not be used, by name.
        failed_so_far: those of `failed` that are known before any hook is called for it.

    Plugins' hooks of a kind are called when something of that kind is first read, those of all
    kinds where `owners` or `failed` are.
    """

    passes: Mapping[str, type[Pass]] = field(default_factory=dict)
    classifiers: Mapping[str, OpClassifier] = field(default_factory=dict)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    instruments: Mapping[str, type[Instrument]] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, click.Command] = field(default_factory=dict)
    reports: Mapping[str, ReportWriter] = field(default_factory=dict)
    importers: Mapping[str, Importer] = field(default_factory=dict)
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    owners: Mapping[tuple[str, str], str] = field(default_factory=dict)
    failed: Mapping[str, PluginInfo] = field(default_factory=dict)
    failed_so_far: Mapping[str, PluginInfo] = field(default_factory=dict)

    def owner(self, kind: str, name: str) -> str:
        """Return the distribution and version that registered a thing; empty for none."""
        return self.owners.get((kind, name), "")

    def unknown(self, kind: str, name: str, known: Mapping[str, object]) -> str:
        """Return the message for a `name` that is not installed.

        It says which distribution has it; where none is known to, what is installed.
        """
        for listed in ("passes", "pipelines") if kind == "pass" else (f"{kind}s",):
            if missing := self.missing(listed, name):
                return missing
        listing = ", ".join(sorted(known)) or "none"
        hint = suggest(name, known) or "; install the plugin that has it"
        text = f"no {kind} {name!r} is installed{hint}; installed: {listing}"
        if self.failed:
            broken = "; ".join(f"{info.name}: {info.error}" for info in self.failed.values())
            text += f" (plugins that failed to load: {broken})"
        return text

    def missing(self, kind: str, name: str) -> str:
        """Return which distribution has a thing that is not installed, and how to install it.

        Args:
            kind: one of the attributes above; ``types`` for a type of `narrowpass.quantize`, or
                ``options`` for an option of ``narrowpass build``.
            name: the thing's name; of an importer, the suffix of its files, or ``a folder``.

        Returns:
            A sentence; empty where no distribution is known to have it, or the one that has it is
            installed.
        """
        return provider_of(kind, name)

    def serving(self, request: str) -> tuple[str, str]:
        """Return the pass that serves a request, and the options that it takes for it.

        Args:
            request: as in `Pass.serves`.

        Raises:
            PluginError: no installed pass serves it, or several do.
        """
        found = [name for name, cls in self.passes.items() if request in cls.serves]
        if len(found) == 1:
            return found[0], self.passes[found[0]].serves[request]
        if found:
            owners = ", ".join(f"{name} of {self.owner('passes', name)}" for name in found)
            raise PluginError(
                f"several passes serve {request}: {owners}; leave all but one out with "
                "--disable-plugin"
            )
        kind = "options" if request.startswith("--") else "types"
        raise PluginError(
            self.missing(kind, request)
            or f"no pass that is installed serves {request}; passes: {', '.join(self.passes)}"
        )

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
        from narrowpass.runtime.backend import Backend

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
        from narrowpass.framework.pipeline_text import construct_item, parse_item, with_caret

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
        if not texts:
            return self
        owners, pipelines = dict(self.owners), dict(self.pipelines)
        for name, text in texts.items():
            check_pipeline(name, text)
            _claim(owners, "pipelines", name, owner)
            pipelines[name] = text
        return replace(self, owners=owners, pipelines=pipelines)


class _Collector:
    """Calls the hooks of plugins, all those of one kind at a time."""

    def __init__(self, sources: Sequence[Source], failed: Mapping[str, PluginInfo]) -> None:
        self._sources = sources
        self.failed_so_far = dict(failed)
        self._owners: dict[tuple[str, str], str] = {}
        self._items: dict[str, Mapping[str, Any]] = {}
        self._results: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._lock = threading.RLock()

    def items(self, kind: str) -> Mapping[str, Any]:
        """Return what plugins register of one kind, by name.

        Raises:
            PluginError: a name that two plugins use; both distributions are named.
        """
        with self._lock:
            if kind not in self._items:
                found: dict[str, Any] = {}
                owners = dict(self._owners)
                for source in self._sources:
                    items = self._checked(source, kind)
                    for name in items:
                        _claim(owners, kind, name, source.info.distribution)
                    found.update(items)
                self._items[kind], self._owners = found, owners
            return self._items[kind]

    def _checked(self, source: Source, kind: str) -> Mapping[str, Any]:
        info = source.info
        if kind not in source.hooks or info.name in self.failed_so_far:
            return {}
        key = info.name, kind
        try:
            if key not in self._results:
                self._results[key] = named(f"{PROJECT}_{kind}", source.hooks[kind]())
            return self._results[key]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the boundary to plugin code
            failed = replace(info, status="failed", error=sentence(error))
            self.failed_so_far[info.name] = failed
            return {}

    def failed(self) -> Mapping[str, PluginInfo]:
        """Return the plugins that could not be used, by name, after all hooks were called."""
        with self._lock:
            for kind in KINDS:
                for source in self._sources:
                    self._checked(source, kind)
            return self.failed_so_far

    def owners(self) -> Mapping[tuple[str, str], str]:
        """Return the distribution of each thing that is registered, by kind and name."""
        for kind in KINDS:
            self.items(kind)
        return self._owners


def build_registry(sources: Sequence[Source], failed: Mapping[str, PluginInfo]) -> Registry:
    """Return what plugins register. Their hooks are called when something is read from it.

    Reading raises `PluginError` where two plugins use one name for things of one kind.
    """
    collector = _Collector(sources, failed)
    kinds = {kind: _Collected(partial(collector.items, kind)) for kind in KINDS}
    return Registry(
        **kinds,
        owners=_Collected(collector.owners),
        failed=_Collected(collector.failed),
        failed_so_far=MappingProxyType(collector.failed_so_far),
    )


def _claim(owners: dict[tuple[str, str], str], kind: str, name: str, owner: str) -> None:
    """Note who registers a name.

    Raises:
        PluginError: somebody else does. A pass and a named pipeline share one name space: either
            may stand in the text.
    """
    for other in ("passes", "pipelines") if kind in ("passes", "pipelines") else (kind,):
        if (other, name) in owners:
            raise PluginError(
                f"{name!r} ({kind}) comes from both {owners[other, name]} and {owner}; leave one "
                "out with --disable-plugin or uninstall it"
            )
    owners[kind, name] = owner
