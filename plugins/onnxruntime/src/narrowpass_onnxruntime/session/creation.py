"""From what a caller names to a compiled program."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

import narrowpass
from narrowpass.bundle import Bundle, is_bundle
from narrowpass.driver import choose_pipeline, open_bundle
from narrowpass.errors import NarrowpassError, OutputError, PluginError, UsageError
from narrowpass.framework.config import registry_for
from narrowpass.framework.plugins import Plugins, installed_plugins
from narrowpass.runtime.backend import Backend, Program
from narrowpass_onnxruntime.files import status_of, turn
from narrowpass_onnxruntime.narrowing import (
    is_repeatable,
    processor,
    sample_status,
    with_auto,
)
from narrowpass_onnxruntime.session.metadata import Interface, interface_of_program
from narrowpass_onnxruntime.session.options import SessionSettings
from narrowpass_onnxruntime.session.overrides import Overrides, forget_names
from narrowpass_onnxruntime.session.providers import ProviderOptions
from narrowpass_onnxruntime.session.source import Opened, Source, translated
from narrowpass_onnxruntime.session.store import Note, Store, default_folder

_WORTH_KEEPING = 1 << 16
"""Bytes of a model, external data included, from which its bundle is kept on disk."""

_OURS = "onnxruntime"
"""The backend that runs a program on onnxruntime's own class, which this one stands in for."""

_log = logging.getLogger("narrowpass.onnxruntime")


@dataclass(frozen=True)
class Created:
    """A session's program, and what callers know of the model.

    Attributes:
        program: with one method.
        bundle: that it was compiled from.
        interface: of the model as the caller named it; overridden dimensions are fixed.
    """

    program: Program
    bundle: Bundle
    interface: Interface


@dataclass(frozen=True)
class Request:
    """What a session is created from.

    Attributes:
        source: the model.
        settings: of the session.
        options: of the provider.
        overrides: returns the free dimensions that the caller fixes, once the model's symbols are
            known.
        named: whether dimensions of one name have one size.
    """

    source: Source
    settings: SessionSettings
    options: ProviderOptions
    overrides: Callable[[Interface], Overrides]
    named: bool = True


def create(request: Request) -> Created:
    """Build, or find, the bundle of a model, and compile it.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidArgument, InvalidGraph, Fail: see `Source.read`; what
            narrowpass reports of the pipeline and the backend is a `Fail`.
    """
    try:
        plugins = installed_plugins()
        backend = _backend(plugins, request.options.backend)
        bundle, interface = _bundle(request, backend, plugins)
        program = narrowpass.load(
            bundle,
            backend,
            threads=request.options.threads or request.settings.threads,
            require_native=request.options.require_native or request.settings.native_only,
            cache=request.options.cache,
            cache_dir=request.options.cache_dir,
        )
        return Created(program, bundle, interface or interface_of_program(program))
    except NarrowpassError as problem:
        raise translated(problem) from problem


def _backend(plugins: Plugins, name: str | None) -> Backend:
    """Return the backend that a session runs on.

    Raises:
        PluginError: there is none, or it cannot run here.
        UsageError: the one that is named runs on onnxruntime.
    """
    registry = registry_for(plugins)
    if name is not None:
        chosen = registry.backend(name)
        if chosen.name == _OURS:
            raise UsageError(
                f"backend {_OURS!r} runs on onnxruntime.InferenceSession itself; use that class"
            )
        return chosen
    others = [backend for backend in registry.backends.values() if backend.name != _OURS]
    able = [backend for backend in others if backend.available() is None]
    if not able:
        raise PluginError("no backend can run models here; install narrowpass-xnn-cpu")
    return max(able, key=lambda backend: backend.priority)


def _bundle(
    request: Request, backend: Backend, plugins: Plugins
) -> tuple[Bundle, Interface | None]:
    source = request.source
    if source.path and is_bundle(source.path):
        return open_bundle(source.path, unread=True), None
    build = _Build(request, backend, plugins)
    if request.options.cache is not True:
        opened = source.read()
        overrides = request.overrides(opened.interface)
        return build.in_memory(opened, overrides), overrides.shown(opened.interface)
    return build.kept()


@dataclass(frozen=True)
class _Build:
    """How the bundle of one session is built; see `Request`."""

    request: Request
    backend: Backend
    plugins: Plugins

    def in_memory(self, opened: Opened, overrides: Overrides) -> Bundle:
        """Build the bundle of a model that was read."""
        return self._run(opened, overrides, None)

    def kept(self) -> tuple[Bundle, Interface]:
        """Return the bundle from the store; build it there where it is missing.

        Small models, and all where the folder cannot be written to, are built in memory; so is one
        whose file the system says nothing of, which another one might be taken for.
        """
        source = self.request.source
        identity = source.identity()
        folder = default_folder(self.request.options.cache_dir)
        store = Store(folder, source.path, identity)
        note = store.note() if identity else None
        if note is not None:
            overrides = self.request.overrides(note.interface)
            shown = overrides.shown(note.interface)
            status = _status(note.external).values()
            found = store.find(self._key(status, overrides)) if self._can_be_kept() else None
            if found is not None:
                return found, shown
        opened = source.read()
        overrides = self.request.overrides(opened.interface)
        shown = overrides.shown(opened.interface)
        kept = identity and _size(source, opened.external) >= _WORTH_KEEPING
        if not kept or not self._can_be_kept():
            return self.in_memory(opened, overrides), shown
        key = self._key(opened.external.values(), overrides)
        try:
            store.write_note(Note(opened.interface, tuple(opened.external)))
            with turn(store.place(key)):
                found = store.find(key)  # whoever had the turn before has built it
                if found is not None:
                    return found, shown
                self._run(opened, overrides, store.place(key))
                store.keep(key)
        except (OSError, OutputError) as problem:
            _log.warning("%s: is built anew in each process: %s", source.name, str(problem))
            return self.in_memory(opened, overrides), shown
        if source.identity() != identity or opened.external != _status(opened.external):
            store.discard(key)  # it was written to meanwhile: nobody knows which one was read
        return store.find(key) or self.in_memory(opened, overrides), shown

    def _can_be_kept(self) -> bool:
        return is_repeatable(self.request.options.calibration)

    def _key(self, external: Iterable[str], overrides: Overrides) -> str:
        """Return all that a bundle follows from, beside the model's file.

        Args:
            external: the status of each external file.
            overrides: of free dimensions.
        """
        return "\n".join(
            (
                *external,
                str(overrides),
                "" if self.request.named else "without names of dimensions",
                self._asked(),
                str(self.backend),
                *sample_status(self.request.options.calibration),
                *(f"{info.distribution} {info.status}" for info in self.plugins.infos),
                f"onnx {onnx.__version__} ir {ir.__version__}",
            )
        )

    def _asked(self) -> str:
        """Return what decides the pipeline, without importing the passes where it is the default.

        That depends on the plugins alone.
        """
        options = self.request.options
        if options.pipeline is None and options.max_error is None and options.objective is None:
            return "default" if self.request.settings.optimize else "none"
        text = f"text {self._pipeline()}"
        # Types are chosen by times on this processor.
        return text if options.max_error is None else f"{text} {processor(self.backend)}"

    def _pipeline(self) -> str:
        options, registry = self.request.options, registry_for(self.plugins)
        text = options.pipeline
        if text is None and not self.request.settings.optimize:
            text = ""
        chosen = str(choose_pipeline(text, self.backend, registry))
        return with_auto(chosen, options.max_error, options.objective, registry)

    def _run(self, opened: Opened, overrides: Overrides, out: Path | None) -> Bundle:
        model = opened.load()
        overrides.apply(model, opened.interface)
        if not self.request.named:
            forget_names(model)
        return narrowpass.build(
            model,
            self._pipeline(),
            out,
            target=self.backend,
            calibration=self.request.options.calibration,
            plugins=self.plugins,
        )


def _size(source: Source, external: Mapping[str, str]) -> int:
    """Return the bytes of a model, without those of files that cannot be looked at."""
    size = len(source.data or b"")
    for path in (*(() if source.data is not None else (source.path,)), *external):
        with contextlib.suppress(OSError):
            size += Path(path).stat().st_size
    return size


def _status(paths: Iterable[str]) -> dict[str, str]:
    """Return the status of files by their paths."""
    return {path: status_of(Path(path)) for path in paths}
