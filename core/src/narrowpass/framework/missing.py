"""Which distribution has what is not installed, and how it is installed.

The core names no plugin: ``data/providers.json`` does, which ``tools/providers.py`` writes from
what the plugins of the repository register.
"""

from __future__ import annotations

import importlib.metadata
import json
from importlib.resources import files
from types import MappingProxyType
from typing import Any

FOLDER = "a folder"
"""What an importer of folders is listed as, beside those of files by their suffixes."""

_RELATIONS = MappingProxyType(
    {
        "backends": "a backend of",
        "candidates": "a candidate of",
        "classifiers": "a classifier of",
        "commands": "a command of",
        "importers": "read by",
        "instruments": "an instrument of",
        "options": "an option of",
        "passes": "a pass of",
        "pipelines": "a named pipeline of",
        "reports": "a format of",
        "types": "made by",
    }
)
"""What a thing is to its distribution, by the kinds of `Registry`; ``types`` and ``options`` are of
`Pass.serves`."""


def provider_of(kind: str, name: str) -> str:
    """Return a sentence on who has a thing, and what to install for it.

    Args:
        kind: an attribute of `Registry`; ``types`` of `narrowpass.quantize`, or ``options``.
        name: the thing's name; the suffix of an importer's files, or `FOLDER`.

    Returns:
        The sentence; empty where no distribution is known to have it, or the one that has it is
        installed: it is disabled or failed then.
    """
    providers = _providers()
    distribution = providers.get(kind, {}).get(name)
    if distribution is None or _is_installed(distribution):
        return ""
    extras = providers["extras"].get(distribution)
    wanted = f"'narrowpass[{extras[0]}]'" if extras else distribution
    return (
        f"{name} is {_RELATIONS[kind]} {distribution}, which is not installed; "
        f"run: pip install {wanted}"
    )


def _providers() -> dict[str, dict[str, Any]]:
    text = files("narrowpass").joinpath("data", "providers.json").read_text("utf-8")
    providers: dict[str, dict[str, Any]] = json.loads(text)
    return providers


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
