"""What is done where constants turn out not to fit: the same with floats."""

from __future__ import annotations

from collections.abc import Callable

from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError

Lower = Callable[[Op, Builder], None]


def or_floats(lower: Lower) -> Lower:
    """Let a function that lowers an operation fall back to `Op.otherwise`, computed in float32.

    It does so where the function raises `UnfitError`, before it emits anything, and where constants
    turned out not to fit when they were packed before. `explain` reports the reason.
    """

    def lowered(op: Op, builder: Builder) -> None:
        reason = builder.unfit.get(op.output.name or "", "")
        if not reason:
            try:
                lower(op, builder)
            except UnfitError as error:
                reason = str(error)
        if not reason:
            return
        for other in op.otherwise:
            if builder.knows(other.output):
                continue
            other.unfit = reason if other.kind == op.get("operator", "") else ""
            builder.lower(other)

    lowered.__module__ = lower.__module__
    return lowered
