"""Sources of other formats than ONNX: which importer reads one, and what it reads."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from narrowpass.bundle import is_bundle
from narrowpass.errors import ModelError, PluginError, UsageError
from narrowpass.framework.boundary import translate_errors
from narrowpass.framework.missing import FOLDER, provider_of
from narrowpass.framework.plugins import Registry
from narrowpass_ir.arguments import instance_of, path_of
from narrowpass_ir.importing import Imported, Importer, check_assets

_log = logging.getLogger("narrowpass")


def importer_of(source: object, registry: Registry) -> Importer | None:
    """Return the importer whose format a path has; None for ONNX, bundles and objects.

    Raises:
        PluginError: a probe fails, or the importer of the path's format is not installed.
        UsageError: several importers read it, or it is no path.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    path = path_of(source, "the path of a model")
    if path.endswith(".onnx"):
        return None
    found = []
    for name, importer in registry.importers.items():
        with translate_errors(f"importer {name!r} failed in probe", PluginError):
            if importer.probe(path):
                found.append(importer)
    if len(found) > 1:
        names = ", ".join(importer.name for importer in found)
        raise UsageError(
            f"{path}: several importers read it ({names}); leave all but one out "
            "with --disable-plugin"
        )
    if not found and (missing := provider_of("importers", _format_of(Path(path)))):
        raise PluginError(f"{path}: {missing}")
    return found[0] if found else None


def _format_of(path: Path) -> str:
    """Return what the importer of a path is listed as, if it has one."""
    try:
        if path.is_file():
            return path.suffix
        # A folder with neither is no bundle that somebody damaged, and holds no model in ONNX.
        others = path.is_dir() and not is_bundle(path) and not any(path.glob("*.onnx"))
        return FOLDER if others and any(path.iterdir()) else ""
    except OSError:  # too long a name, or not ours to read: who opens it says so
        return ""


def read_source(importer: Importer, source: str | os.PathLike[str]) -> Imported:
    """Let an importer read a source, check what it returns, and log its notes.

    Raises:
        InputError: the source is damaged or not supported.
        PluginError: the importer returns something else than `Imported`.
    """
    what = f"importer {importer.name!r} failed on {os.fspath(source)}"
    with translate_errors(what, ModelError):
        found = importer.load(os.fspath(source))
    if not isinstance(found, Imported):
        raise PluginError(f"importer {importer.name!r} returned {found!r}, and no Imported")
    check_assets(found.assets)
    for note in found.notes:
        _log.warning("%s: %s", os.fspath(source), note)
    return found


def import_models(models: Mapping[str, Any] | Any, registry: Registry) -> Imported:
    """Replace each path that an importer reads by its models.

    Args:
        models: what models are given as, by method; one alone is method ``main``, or what its
            importer calls its methods.
        registry: has the importers.

    Returns:
        The models by method, as they were given where no importer reads them, and all assets.

    Raises:
        UsageError: a source of several methods beside others.
        InputError: a source is damaged or not supported.
    """
    if isinstance(models, Imported):
        return models
    alone = not isinstance(models, Mapping) or list(models) == ["main"]
    methods: dict[str, Any] = {}
    assets: dict[str, bytes] = {}
    notes: list[str] = []
    for name, source in (models if isinstance(models, Mapping) else {"main": models}).items():
        importer = importer_of(source, registry)
        if importer is None:
            methods[name] = source
            continue
        found = read_source(importer, source)
        instance_of(found.methods, Mapping, f"the methods of {source}", "a dict of models")
        if len(found.methods) > 1 and not alone:
            raise UsageError(
                f"{source}: has several methods ({', '.join(found.methods)}), which cannot be one "
                f"method {name!r}; build it alone"
            )
        methods |= found.methods if alone else {name: next(iter(found.methods.values()))}
        assets |= found.assets
        notes += found.notes
    return Imported(methods, assets, tuple(notes))


def installed_importers(registry: Registry) -> str:
    """Return names and suffixes of the importers, for messages."""
    listing = ", ".join(
        f"{name} ({' '.join(importer.suffixes) or 'folders'})"
        for name, importer in sorted(registry.importers.items())
    )
    return f"importers of other formats that are installed: {listing or 'none'}"
