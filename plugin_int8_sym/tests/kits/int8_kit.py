"""Small models, and the pass run on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import passes_kit
from onnx import numpy_helper
from passes_kit import model, verdicts

from narrowpass import Bundle

__all__ = ["model", "verdicts"]

RNG = np.random.default_rng(77)
Array = np.ndarray[Any, Any]


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def build(proto: onnx.ModelProto, text: str = "int8-sym") -> Bundle:
    """Build with the pass, from a model object, which must not change."""
    return passes_kit.build(proto, text)


def rewritten(proto: onnx.ModelProto, text: str = "int8-sym") -> onnx.ModelProto:
    """Return the model after the pass; it is checked, and a second run changes nothing."""
    return passes_kit.rewritten(proto, text)


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
