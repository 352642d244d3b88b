"""Reading and writing ONNX files, with weights left in their files until they are needed."""

from __future__ import annotations

from narrowpass.io._checker import check_file
from narrowpass.io._serialize import external_reference, serialize
from narrowpass.io._shape_operands import shape_operands
from narrowpass.io.converted import (
    ConvertedTensor,
    Rounding,
    elements,
    rounding,
    rounding_at_most,
)
from narrowpass.io.load import load_model, load_proto
from narrowpass.io.mapped import MappedFile, MappedTensor
from narrowpass.io.save import save_model
from narrowpass.io.viewed import ViewedTensor

__all__ = [
    "ConvertedTensor",
    "MappedFile",
    "MappedTensor",
    "Rounding",
    "ViewedTensor",
    "check_file",
    "elements",
    "external_reference",
    "load_model",
    "load_proto",
    "rounding",
    "rounding_at_most",
    "save_model",
    "serialize",
    "shape_operands",
]
