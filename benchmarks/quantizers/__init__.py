"""What makes models int8 for the benchmarks: this project and its peers, each with its own tool."""

from __future__ import annotations

from quantizers.source import Source, prepare
from quantizers.variants import MODELS, VARIANTS, Variant, bytes_of_weights

__all__ = ["MODELS", "VARIANTS", "Source", "Variant", "bytes_of_weights", "prepare"]
