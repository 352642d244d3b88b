"""Steps of products and convolutions that end with a residual and a function.

Where the residual surely has the shape of the result, that is one step. Where sizes are known at
run time only it may have to be broadcast, which the kernel does not do: then the step leaves it
out, and steps behind it do the rest. For shapes that are equal these are views of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.elementwise import Function
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Elementwise, Pairwise
from narrowpass_xnn_cpu.native.epilogue import Epilogue

_UNARY = {"gelu": "gelu", "tanh-gelu": "approxgelu", "hard-swish": "hardswish"}
"""XNNPACK's names of functions."""


class Ended(Step):
    """A step whose sums become what an epilogue makes of them.

    Args:
        given: its operand.
        output: its result.
        epilogue: what becomes of sums.
        residual: what is added, where the epilogue has that.
        fits: whether the residual surely has the shape of the result.

    Attributes:
        epilogue: what becomes of sums.
        residual: what is added; None for nothing.
    """

    def __init__(
        self,
        given: Slot,
        output: Slot,
        epilogue: Epilogue,
        residual: Slot | None = None,
        fits: bool = True,
    ) -> None:
        super().__init__([given] if residual is None else [given, residual], output)
        # A residual that is read with the bias: tile by tile, before sums are written there.
        self.in_place: Sequence[int] = (1,) if epilogue.residual == "before" else ()
        self.epilogue = epilogue
        self.residual = residual
        self._fits = fits

    def fitting(self, shapes: Sequence[Shape], result: Shape) -> Epilogue:
        """Give what becomes of sums for these shapes of the inputs.

        Raises:
            BackendError: a residual that was to be of the result's shape is not.
        """
        if len(shapes) < 2 or shapes[1] == result:
            return self.epilogue
        if self._fits:
            raise BackendError(f"{list(shapes[1])} and {list(result)} were declared to be equal")
        return self.epilogue.without_residual()


class _Unless(Step):
    """A step that has nothing to do where two slots are of one shape.

    Args:
        step: what is done otherwise.
        one: a slot.
        other: another.
    """

    def __init__(self, step: Step, one: Slot, other: Slot) -> None:
        super().__init__([*step.inputs, one, other], step.output)
        self.kernel = f"{step.kernel} if broadcast"
        self._step = step

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        *given, one, other = shapes
        return Run(given[0], view=0) if one == other else self._step.size(given, sizing)


def residual_of(op: Op, builder: Builder, perm: Perm) -> Slot | None:
    """Give the slot of what is added, in the order of axes of the result."""
    return None if op.residual is None else builder.at(op.residual, perm)


def emit(op: Op, builder: Builder, step: Ended, perm: Perm) -> None:
    """Add a step, and what may have to be done after it; the result is the output of `op`."""
    slot = builder.emit(step)
    if step.residual is not None and not op.residual_fits:
        slot, other = step.output, step.residual
        added = Pairwise(slot, other, builder.scratch(op.output), "add")
        total = builder.emit(_Unless(added, slot, other))
        if op.epilogue.residual == "before" and (op.function != "clamp" or op.clamped):
            last = _function(op, total, builder.scratch(op.output))
            total = builder.emit(_Unless(last, slot, other))
        slot = total
    builder.alias(op.output, slot, perm)


def _function(op: Op, given: Slot, output: Slot) -> Step:
    if op.function == "clamp":
        return Elementwise(given, output, "clamp", op.limits)
    if op.function in _UNARY:
        return Elementwise(given, output, _UNARY[op.function])
    return Function(given, output, op.function)
