"""The forms of models that benchmarks compare, each made by its runtime's own tool."""

from __future__ import annotations

from forms.source import Source, prepare
from forms.variants import MODELS, PRECISIONS, VARIANTS, Variant, bytes_of_weights

__all__ = ["MODELS", "PRECISIONS", "VARIANTS", "Source", "Variant", "bytes_of_weights", "prepare"]
