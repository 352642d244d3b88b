"""Operands that are read by strides, in whatever order their axes lie."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_planning.plan.step import Shape
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lowered.op import Perm
from narrowpass_xnn_cpu.native import kernels


class View:
    """An operand with its axes in ONNX's order, wherever they lie.

    Args:
        lies: its shape as it lies in memory, dense.
        perm: the order that its axes lie in.

    Attributes:
        shape: with its axes in ONNX's order.
        steps: strides in elements, in that order; 0 along axes of size 1.
    """

    def __init__(self, lies: Shape, perm: Perm) -> None:
        steps = kernels.dense_strides(lies)
        places = [perm.index(axis) for axis in range(len(perm))]
        self.shape = tuple(lies[place] for place in places)
        self.steps = [0 if lies[place] == 1 else steps[place] for place in places]

    def expand(self, target: Sequence[int]) -> None:
        """Repeat what has size 1 for a target that has an axis more, before the last two."""
        self.shape = broadcast(self.shape, (*target[:2], *target[3:]))

    def strides(self) -> list[int]:
        """Give five strides; 0 along axes that are broadcast."""
        return [0] * (5 - len(self.steps)) + self.steps
