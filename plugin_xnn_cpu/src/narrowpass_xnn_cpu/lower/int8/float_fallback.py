"""Fallback to float32 where constants of an operation do not fit its int8 kernel."""

from __future__ import annotations

from collections.abc import Callable

from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError

Lower = Callable[[Op, Builder], None]


def with_float_fallback(lower: Lower) -> Lower:
    """Wrap a function that lowers an int8 operation: where it cannot, `Op.float_ops` are lowered.

    That is where the function raises `UnfitError`, which it does before it emits anything, and
    where packing has found that constants do not fit (`Builder.unfit`). `explain` reports the
    reason.
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
        for other in op.float_ops:
            if builder.has_value(other.output):
                continue
            other.unfit = reason if other.kind == op.get("operator", "") else ""
            builder.lower(other)

    lowered.__module__ = lower.__module__
    return lowered
