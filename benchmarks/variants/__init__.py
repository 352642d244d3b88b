"""The forms of models that benchmarks compare, each written by its runtime's own tool."""

from __future__ import annotations

from variants.source import Source, prepare
from variants.variants import MODELS, PRECISIONS, VARIANTS, Variant, bytes_of_weights

__all__ = ["MODELS", "PRECISIONS", "VARIANTS", "Source", "Variant", "bytes_of_weights", "prepare"]
