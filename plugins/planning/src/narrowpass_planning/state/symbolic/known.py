"""What rules ask of the values of a graph."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from narrowpass_planning.state.symbolic.affine import Dims
from narrowpass_planning.state.symbolic.tensor import Flat, Tensor


class Known(Protocol):
    """What is known of values; see `evaluation.Evaluation`."""

    def tensor(self, value: ir.Value | None) -> Tensor | None:
        """Return what is known of a value's elements; None where nothing is."""

    def flat(self, value: ir.Value | None) -> Flat | None:
        """Return what is known of a value's elements whose order is known; None for others."""

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the dimensions of a value; None where they are not affine, or no rank is known."""
