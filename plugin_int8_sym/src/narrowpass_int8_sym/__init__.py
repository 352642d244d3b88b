"""Symmetric int8 quantization of matmuls and convolutions, and repair of quantized models.

This is the plugin's entry module. It imports neither onnx nor numpy; the modules with the
passes are imported when the hooks are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Candidate, Pass

__all__ = ["narrowpass_candidates", "narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the passes ``equalize``, ``int8-sym`` and ``repair-quantized``."""
    from narrowpass_int8_sym.equalize import Equalize
    from narrowpass_int8_sym.int8_sym import Int8Sym
    from narrowpass_int8_sym.repair_quantized import RepairQuantized

    return [Equalize, Int8Sym, RepairQuantized]


@hookimpl
def narrowpass_candidates() -> list[Candidate]:
    """Register ``int8`` (scales from data), ``int8-dynamic`` and ``int8-weights``."""
    from narrowpass_analysis.candidates import PassCandidate
    from narrowpass_int8_sym.int8_sym import Int8Sym

    return [
        PassCandidate("int8", Int8Sym(mode="static"), 20, needs_data=True),
        PassCandidate("int8-dynamic", Int8Sym(mode="dynamic"), 20),
        PassCandidate("int8-weights", Int8Sym(mode="weight-only"), 20),
    ]
