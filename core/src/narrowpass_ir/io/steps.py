"""The steps of reading and writing, for formats that store models with weights of their own.

What `narrowpass_ir.io.load_model` does in one call: `parse_model`, `refuse`, `build_model`,
`replace_tensors`. A format that keeps what onnx.checker said of a model writes what `remembered`
returns, and calls `remember` when it reads the model.
"""

from __future__ import annotations

from narrowpass_ir.io._checker import remember, remembered
from narrowpass_ir.io._external import open_inside
from narrowpass_ir.io._inline import element_type
from narrowpass_ir.io._refusals import refuse
from narrowpass_ir.io._walk import initializers, proto_tensors
from narrowpass_ir.io.load import build_model, parse_model, replace_tensors

__all__ = [
    "build_model",
    "element_type",
    "initializers",
    "open_inside",
    "parse_model",
    "proto_tensors",
    "refuse",
    "remember",
    "remembered",
    "replace_tensors",
]
