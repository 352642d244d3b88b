"""Quantizes OpenVINO's form of a model with NNCF."""

from __future__ import annotations

from pathlib import Path

from variants.source import Source


def static(source: Source, target: Path) -> None:
    """Fix the scales of activations by calibration, with NNCF's defaults for the kind of model."""
    import nncf
    import openvino

    model = openvino.convert_model(source.model)
    samples = nncf.Dataset(list(source.samples()))
    built = nncf.quantize(
        model,
        samples,
        subset_size=samples.get_length(),
        model_type=None if source.convolutional else nncf.ModelType.TRANSFORMER,
    )
    openvino.save_model(built, target, compress_to_fp16=False)
