"""Reading and writing ONNX files, with weights left in their files until they are needed."""

from __future__ import annotations

from narrowpass_ir.io._checker import check_file
from narrowpass_ir.io._serialize import external_reference, serialize
from narrowpass_ir.io._shape_operands import shape_operands
from narrowpass_ir.io.converted import (
    ConvertedTensor,
    Rounding,
    elements,
    rounding,
    rounding_at_most,
)
from narrowpass_ir.io.load import load_bytes, load_model, load_proto
from narrowpass_ir.io.mapped import MappedFile, MappedTensor
from narrowpass_ir.io.save import save_model
from narrowpass_ir.io.viewed import ViewedTensor

__all__ = [
    "ConvertedTensor",
    "MappedFile",
    "MappedTensor",
    "Rounding",
    "ViewedTensor",
    "check_file",
    "elements",
    "external_reference",
    "load_bytes",
    "load_model",
    "load_proto",
    "rounding",
    "rounding_at_most",
    "save_model",
    "serialize",
    "shape_operands",
]
