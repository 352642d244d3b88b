"""Quantizes with onnxruntime's own tools, after the preprocessing that they advise."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from runners.loaders import reader

from variants.source import Source


def _static(source: Source, target: Path, activations: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(str(source.model), str(ready))
        quantize_static(
            str(ready),
            str(target),
            reader(source.samples()),
            quant_format=QuantFormat.QDQ,
            activation_type=activations,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )


def u8s8(source: Source, target: Path) -> None:
    """Build activations unsigned and weights signed, for each channel: its advice for x86-64."""
    _static(source, target, QuantType.QUInt8)


def s8s8(source: Source, target: Path) -> None:
    """Build activations and weights signed, these for each channel."""
    _static(source, target, QuantType.QInt8)


def dynamic(source: Source, target: Path) -> None:
    """Quantize activations as they come, after fusing attention: its advice for transformers."""
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        kind = "vit" if "vit" in source.name else "bert"
        optimize_model(str(source.model), model_type=kind).save_model_to_file(str(ready))
        quantize_dynamic(
            str(ready),
            str(target),
            per_channel=True,
            weight_type=QuantType.QInt8,
            # What follows a fused operator, whose type shape inference does not know.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
