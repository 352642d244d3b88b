"""Constant folding and graph clean-up: the pass ``fold``.

This is the plugin's entry module. It imports neither onnx nor numpy; what does the work is
imported when the pass runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl
from narrowpass_constant_folding.fold import Fold

if TYPE_CHECKING:
    from narrowpass import Pass

__all__ = ["Fold", "narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the passes of this distribution."""
    return [Fold]
