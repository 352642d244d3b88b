"""The hooks that a plugin may implement. Hooks only register; typed objects do the work.

A plugin is a module (or an object) that an entry point of the group ``narrowpass`` names. It
implements hooks as functions marked with `hookimpl`::

    from narrowpass import hookimpl

    @hookimpl
    def narrowpass_passes():
        from my_plugin.passes import MyPass
        return [MyPass]

Imports of heavy modules belong inside the functions: ``narrowpass plugins`` imports the entry
module of every plugin and calls no hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import click

    from narrowpass.framework.classify import OpClassifier
    from narrowpass.framework.context import Candidate
    from narrowpass.framework.instruments import Instrument
    from narrowpass.framework.passes import Pass
    from narrowpass.framework.reports import ReportWriter
    from narrowpass.runtime.backend import Backend
    from narrowpass_ir.importing import Importer

PROJECT = "narrowpass"
"""The entry-point group, the marker's name, and the prefix of every hook."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook that it is named after."""


@hookspec
def narrowpass_passes() -> Iterable[type[Pass]]:  # type: ignore[empty-body]
    """Return the passes of this plugin.

    Returns:
        Subclasses of `narrowpass.Pass`, each a frozen dataclass with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.passes` is first read.
    """


@hookspec
def narrowpass_classifiers() -> Iterable[OpClassifier]:  # type: ignore[empty-body]
    """Return the op classifiers of this plugin, chosen by ``classifier=NAME`` in pipeline text.

    Returns:
        Instances of `narrowpass.OpClassifier`, each with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.classifiers` is first read.
    """


@hookspec
def narrowpass_candidates() -> Iterable[Candidate]:  # type: ignore[empty-body]
    """Return the candidates of this plugin: ways to narrow single nodes.

    Returns:
        Instances of `narrowpass.Candidate`, each with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.candidates` is first read.
    """


@hookspec
def narrowpass_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Return the backends of this plugin.

    Whether a backend can run on this machine is asked later, through `Backend.available`; a hook
    must not fail because it cannot.

    Returns:
        Instances of `narrowpass.Backend`, each with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.backends` is first read.
    """


@hookspec
def narrowpass_instruments() -> Iterable[type[Instrument]]:  # type: ignore[empty-body]
    """Return the pass instruments of this plugin, used by ``build --instrument NAME{...}``.

    Returns:
        Subclasses of `narrowpass.Instrument`, each a dataclass with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.instruments` is first read.
    """


@hookspec
def narrowpass_pipelines() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Return named pipelines: one may stand in pipeline text wherever a pass may.

    Returns:
        Pipeline text by name. It is parsed when it is first used, so that it may name passes of
        other plugins.

    Since version 0.1. Called once, when `Registry.pipelines` is first read.
    """


@hookspec
def narrowpass_reports() -> Iterable[ReportWriter]:  # type: ignore[empty-body]
    """Return report writers: each writes the files of one ending for ``--report``.

    Returns:
        Instances of `narrowpass.ReportWriter`, each with a ``name`` of its own, the ending.

    Since version 0.1. Called once, when `Registry.reports` is first read.
    """


@hookspec
def narrowpass_importers() -> Iterable[Importer]:  # type: ignore[empty-body]
    """Return importers: each reads the files or folders of one format into models.

    `narrowpass.build` asks each importer's `probe` whether a path is of its format, and the `load`
    of the one that says so.

    Returns:
        Instances of `narrowpass_ir.importing.Importer`, each with a ``name`` of its own.

    Since version 0.1. Called once, when `Registry.importers` is first read.
    """


@hookspec
def narrowpass_commands() -> Iterable[click.Command]:  # type: ignore[empty-body]
    """Return commands that this plugin adds to the ``narrowpass`` command line.

    Called when a command is asked for that narrowpass does not have, and for the list of commands.

    Returns:
        Commands, each with a ``name`` of its own.

    Since version 0.1.
    """
