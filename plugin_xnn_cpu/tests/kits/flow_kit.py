"""Models of control flow from text, and comparing them with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from xnn_kit import check, compile_model

from narrowpass import Program

Array = np.ndarray[Any, Any]


def model_of(graph: str, opset: int = 18) -> onnx.ModelProto:
    """Build a model from the text of its graph."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')


def floats(*shape: int, seed: int = 0) -> Array:
    """Return standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agrees(model: onnx.ModelProto, *feeds: Mapping[str, Array], threads: int = 1) -> Program:
    """Compare with onnxruntime, on one program, in turn and once more."""
    program = compile_model(model, threads=threads)
    for given in (*feeds, *feeds[::-1]):
        check(model, given, program=program, native=None, oracle="onnxruntime")
    return program
