"""What is done where constants turn out not to fit: the same with floats."""

from __future__ import annotations

from collections.abc import Callable

from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import RULES, Op
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError

Lower = Callable[[Op, Builder], None]


def or_floats(lower: Lower) -> Lower:
    """Let a function that lowers an operation fall back to `Op.otherwise`.

    It must make its operator before it adds a step. What does not fit is told by `explain`.
    """

    def lowered(op: Op, builder: Builder) -> None:
        try:
            lower(op, builder)
        except UnfitError as error:
            for other in op.otherwise:
                if builder.knows(other.output):
                    continue
                other.unfit = str(error) if other.kind == op.get("operator", "") else ""
                builder.start(other)
                RULES[other.kind].lower(other, builder)

    lowered.__module__ = lower.__module__
    return lowered
