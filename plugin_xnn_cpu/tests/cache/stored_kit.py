"""Bundles whose compiled methods are stored, and the files of these."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from narrowpass import Bundle
from narrowpass_planning.weights.folder import METHOD


def save(folder: Path, **methods: onnx.ModelProto) -> Path:
    """Write a bundle of models."""
    models = {name: ir.from_proto(model) for name, model in methods.items()}
    Bundle(models).save(folder / "b.narrow")
    return folder / "b.narrow"


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob(f"*{METHOD}"))


def compiled_file(folder: Path) -> Path:
    """Return the file of the only method; the other one has signatures."""
    return max(stored(folder), key=lambda path: path.stat().st_size)
