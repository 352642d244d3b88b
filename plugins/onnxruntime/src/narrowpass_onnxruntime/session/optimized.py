"""The model after the passes, as a file that a caller asks for."""

from __future__ import annotations

from pathlib import Path

import onnx

from narrowpass.bundle import Bundle
from narrowpass_ir.io import save_model
from narrowpass_onnxruntime.session.options import SessionSettings


def write_optimized(bundle: Bundle, settings: SessionSettings) -> None:
    """Write the model of a bundle where the settings say; nothing where they say nothing.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(settings.optimized_path)
    if not settings.optimized_path:
        return
    model = next(iter(bundle.methods.values()))
    save_model(model, path)
    if settings.external_name:
        proto = onnx.load_model(path)
        (path.parent / settings.external_name).unlink(missing_ok=True)  # onnx would append to it
        onnx.save_model(
            proto,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=settings.external_name,
            size_threshold=settings.external_least,
        )
