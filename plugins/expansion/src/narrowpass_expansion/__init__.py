"""Operators of transformers written as plain ONNX operators, so that every backend has them."""

from __future__ import annotations

from narrowpass_expansion.emitter import OPSET, Unsupported
from narrowpass_expansion.expansion import Expansion, expand
from narrowpass_expansion.rules import OPERATORS

__all__ = ["OPERATORS", "OPSET", "Expansion", "Unsupported", "expand"]
