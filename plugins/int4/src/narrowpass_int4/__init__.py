"""4-bit weights: the pass ``int4``.

This is the plugin's entry module. It imports neither onnx nor numpy; what does the work is imported
when the hook is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Candidate, Pass

__all__ = ["narrowpass_candidates", "narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the pass ``int4``."""
    from narrowpass_int4.int4 import Int4

    return [Int4]


@hookimpl
def narrowpass_candidates() -> list[Candidate]:
    """Register ``int4``, and ``int4-dynamic`` with rows that are quantized at run time."""
    from narrowpass_analysis.candidates import PassCandidate
    from narrowpass_int4.int4 import Int4

    return [
        PassCandidate("int4", Int4(), 10),
        PassCandidate("int4-dynamic", Int4(activations="dynamic"), 10),
    ]
