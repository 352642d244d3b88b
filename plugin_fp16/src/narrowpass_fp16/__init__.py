"""Mixed precision: models rewritten to float16 or bfloat16 with the fewest casts.

This is the plugin's entry module. It imports neither onnx nor numpy; what does the work is imported
when the hooks are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Candidate, OpClassifier, Pass

__all__ = ["narrowpass_candidates", "narrowpass_classifiers", "narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the pass ``fp16``."""
    from narrowpass_fp16.mixed_precision import MixedPrecision

    return [MixedPrecision]


@hookimpl
def narrowpass_classifiers() -> list[OpClassifier]:
    """Register the classifiers ``default`` and ``sized``."""
    from narrowpass_fp16.coloring.classifier import DefaultClassifier, SizedClassifier

    return [DefaultClassifier(), SizedClassifier()]


@hookimpl
def narrowpass_candidates() -> list[Candidate]:
    """Register ``bf16`` and ``fp16``: the pass in either type."""
    from narrowpass import OpDtypes
    from narrowpass_analysis.candidates import PassCandidate
    from narrowpass_fp16.mixed_precision import MixedPrecision

    bf16, fp16 = MixedPrecision(dtype="bfloat16"), MixedPrecision(dtype="float16")
    return [
        PassCandidate("bf16", bf16, 30, dtypes=OpDtypes("float32", "bfloat16")),
        PassCandidate("fp16", fp16, 30, dtypes=OpDtypes("float32", "float16")),
    ]
