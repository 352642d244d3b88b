"""The `reference` backend: onnx's evaluator as the oracle, and as every backend's fallback."""

from __future__ import annotations

from narrowpass.reference._operators import replacement
from narrowpass.reference._recurrent import Recurrent
from narrowpass.reference.backend import ReferenceBackend
from narrowpass.reference.nodes import NodeEvaluator
from narrowpass.reference.program import ReferenceProgram
from narrowpass.reference.threads import blas_threads

__all__ = [
    "NodeEvaluator",
    "Recurrent",
    "ReferenceBackend",
    "ReferenceProgram",
    "blas_threads",
    "replacement",
]
