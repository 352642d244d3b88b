"""Reads GGUF files of language models into narrowpass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass_ir.importing import Importer

__all__ = ["narrowpass_importers"]


@hookimpl
def narrowpass_importers() -> list[Importer]:
    """Return the importer of GGUF files."""
    from narrowpass_gguf.importer import GgufImporter

    return [GgufImporter()]
