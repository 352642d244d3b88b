"""The forms of a model that are compared: the tool that writes each, its runtime, its file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from variants.source import Source

MODELS = ("resnet50", "mobilenet-v2", "minilm", "bert-base", "vit-b16")
PRECISIONS = ("float32", "bfloat16", "int8")
"""What may be narrowed: nothing, floats, or floats to integers."""


@dataclass(frozen=True)
class Variant:
    """One form of a model.

    Attributes:
        name: what the tables call it.
        precision: one of `PRECISIONS`.
        runtime: what runs it, one of `runners.RUNTIMES`.
        maker: ``MODULE.FUNCTION`` of this package that writes it; empty for the model as exported.
        ending: what follows the model's name in the name of the file.
        models: which models the tool's documentation advises it for.
    """

    name: str
    precision: str
    runtime: str
    maker: str
    ending: str
    models: Literal["convolutional", "transformers", "all"] = "all"

    def takes(self, source: Source) -> bool:
        """Return whether the form is one for such a model."""
        return self.models in ("all", "convolutional" if source.convolutional else "transformers")

    def path(self, source: Source) -> Path:
        """Return the file that the runtime loads."""
        return source.model.with_name(source.name + self.ending)

    def build(self, source: Source) -> None:
        """Write the file. What the tool raises is passed on."""
        module, function = self.maker.split(".")
        getattr(importlib.import_module(f"variants.{module}"), function)(source, self.path(source))


VARIANTS = (
    Variant("narrowpass fp32", "float32", "narrowpass", "by_narrowpass.plain", "-fp32.narrow"),
    Variant("onnxruntime fp32", "float32", "onnxruntime", "", ".onnx"),
    Variant("openvino fp32", "float32", "openvino", "", ".onnx"),
    Variant("executorch fp32", "float32", "executorch", "by_executorch.plain", "-fp32.pte"),
    Variant("narrowpass bf16", "bfloat16", "narrowpass", "by_narrowpass.bfloat16", "-bf16.narrow"),
    Variant("openvino default", "bfloat16", "openvino-default", "", ".onnx"),
    Variant("narrowpass static", "int8", "narrowpass", "by_narrowpass.static", "-static.narrow"),
    Variant("narrowpass dynamic", "int8", "narrowpass", "by_narrowpass.dynamic", "-dynamic.narrow"),
    Variant("onnxruntime u8s8", "int8", "onnxruntime", "by_onnxruntime.u8s8", "-u8s8.onnx"),
    Variant("onnxruntime s8s8", "int8", "onnxruntime", "by_onnxruntime.s8s8", "-s8s8.onnx"),
    Variant(
        "onnxruntime dynamic",
        "int8",
        "onnxruntime",
        "by_onnxruntime.dynamic",
        "-dynamic.onnx",
        models="transformers",
    ),
    Variant("openvino nncf", "int8", "openvino", "by_nncf.static", "-nncf.xml"),
    Variant(
        "executorch static",
        "int8",
        "executorch",
        "by_executorch.static",
        "-static.pte",
        models="convolutional",
    ),
    Variant(
        "executorch dynamic",
        "int8",
        "executorch",
        "by_executorch.dynamic",
        "-dynamic.pte",
        models="transformers",
    ),
)


def bytes_of_weights(path: Path) -> int:
    """Return the size of the file that holds the weights of a model, in bytes."""
    if path.suffix == ".xml":
        return path.with_suffix(".bin").stat().st_size
    if path.is_dir():
        return (path / "weights.safetensors").stat().st_size
    return path.stat().st_size
