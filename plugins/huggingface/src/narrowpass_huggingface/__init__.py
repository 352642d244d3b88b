"""Reads folders of language models, as transformers saves them, into narrowpass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass_ir.importing import Importer

__all__ = ["narrowpass_importers"]


@hookimpl
def narrowpass_importers() -> list[Importer]:
    """Return the importer of folders."""
    from narrowpass_huggingface.importer import FolderImporter

    return [FolderImporter()]
