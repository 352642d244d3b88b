"""The forms of a model that are compared: who makes it, what runs it, where it is."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quantizers.source import Source

MODELS = ("resnet50", "mobilenet-v2", "minilm", "bert-base")


@dataclass(frozen=True)
class Variant:
    """One form of a model.

    Attributes:
        name: what the tables call it.
        runtime: what runs it, one of `runners.RUNTIMES`.
        maker: ``MODULE.FUNCTION`` of this package that makes it; empty for the model as exported.
        ending: what follows the model's name in the name of the file.
        models: which models the tool's documentation advises it for.
    """

    name: str
    runtime: str
    maker: str
    ending: str
    models: Literal["images", "tokens", "all"] = "all"

    def takes(self, source: Source) -> bool:
        """Tell whether the form is one for such a model."""
        return self.models in ("all", "images" if source.convolutional else "tokens")

    def path(self, source: Source) -> Path:
        """Give the file that the runtime loads."""
        return source.model.with_name(source.name + self.ending)

    def make(self, source: Source) -> None:
        """Write the file. What the tool raises is passed on."""
        module, function = self.maker.split(".")
        getattr(importlib.import_module(f"quantizers.{module}"), function)(
            source, self.path(source)
        )


VARIANTS = (
    Variant("narrowpass fp32", "narrowpass", "by_narrowpass.plain", "-fp32.narrow"),
    Variant("narrowpass static", "narrowpass", "by_narrowpass.static", "-static.narrow"),
    Variant("narrowpass dynamic", "narrowpass", "by_narrowpass.dynamic", "-dynamic.narrow"),
    Variant("onnxruntime fp32", "onnxruntime", "", ".onnx"),
    Variant("onnxruntime u8s8", "onnxruntime", "by_onnxruntime.u8s8", "-u8s8.onnx"),
    Variant("onnxruntime s8s8", "onnxruntime", "by_onnxruntime.s8s8", "-s8s8.onnx"),
    Variant(
        "onnxruntime dynamic",
        "onnxruntime",
        "by_onnxruntime.dynamic",
        "-dynamic.onnx",
        models="tokens",
    ),
    Variant("openvino nncf", "openvino", "by_nncf.static", "-nncf.xml"),
    Variant(
        "executorch static", "executorch", "by_executorch.static", "-static.pte", models="images"
    ),
    Variant(
        "executorch dynamic", "executorch", "by_executorch.dynamic", "-dynamic.pte", models="tokens"
    ),
)


def bytes_of_weights(path: Path) -> int:
    """Give the size of the file that holds the weights of a model, in bytes."""
    if path.suffix == ".xml":
        return path.with_suffix(".bin").stat().st_size
    if path.is_dir():
        return (path / "weights.safetensors").stat().st_size
    return path.stat().st_size
