"""Feeds that follow from a model's inputs: token ids in range, masks of ones."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from gallery.model import Feeds, Model

_USUAL = 64


def feeds_of(path: Path, model: Model, seed: int = 0) -> Feeds:
    """Draw feeds for the inputs of a file that have no defaults."""
    rng = np.random.default_rng(seed)
    return {
        value.name: model.values.get(value.name, _drawn(value, model, rng))
        for value in _inputs(path)
    }


@functools.cache
def _inputs(path: Path) -> tuple[onnx.ValueInfoProto, ...]:
    """Return the inputs of a file that have no defaults."""
    graph = onnx.load(path, load_external_data=False).graph
    defaults = {tensor.name for tensor in graph.initializer}
    return tuple(value for value in graph.input if value.name not in defaults)


def _drawn(value: onnx.ValueInfoProto, model: Model, rng: np.random.Generator) -> Any:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        asked = model.sizes.get(f"{value.name}.{axis}")
        named = model.sizes.get(dim.dim_param) if dim.dim_param else None
        fixed = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        shape.append(fixed or asked or named or (1 if axis == 0 else _USUAL))
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b" or "mask" in value.name:
        return np.ones(shape, dtype)
    return rng.integers(0, 2 if "type" in value.name else 100, shape).astype(dtype)
