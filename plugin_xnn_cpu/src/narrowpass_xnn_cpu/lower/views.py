"""Strided views of operands in any layout."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.plan.step import Shape
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lowered.op import Perm
from narrowpass_xnn_cpu.native import kernels


class View:
    """A strided view of an operand, with axes in the order of ONNX.

    Args:
        physical: the shape in memory, dense.
        perm: the layout.

    Attributes:
        shape: in the order of ONNX.
        steps: strides in elements, in the same order; 0 along axes of size 1.
    """

    def __init__(self, physical: Shape, perm: Perm) -> None:
        steps = kernels.dense_strides(physical)
        places = [perm.index(axis) for axis in range(len(perm))]
        self.shape = tuple(physical[place] for place in places)
        self.steps = [0 if physical[place] == 1 else steps[place] for place in places]

    def expand(self, target: Sequence[int]) -> None:
        """Broadcast to a target that has one axis more, before the last two."""
        self.shape = broadcast(self.shape, (*target[:2], *target[3:]))

    def strides(self) -> list[int]:
        """Return the strides of five axes; 0 along broadcast axes."""
        return [0] * (5 - len(self.steps)) + self.steps
