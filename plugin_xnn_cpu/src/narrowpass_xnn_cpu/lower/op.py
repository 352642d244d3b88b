"""Operations before lowering: one ONNX node, or several that were fused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass.framework.classify import ACCUMULATE, ACTIVATIONS
from narrowpass_planning.graph import op as planning
from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED, Range
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue


@dataclass
class Op(planning.Op):
    """An operation that a rule lowers, with its fused epilogue.

    Attributes:
        limits: the clipping range of the output.
        function: applied to the output; one of `epilogue.FUNCTIONS`.
        residual: added to the output; None for nothing.
        residual_fits: whether the residual is known to have the shape of the output.
        residual_last: whether the residual is added after the function and the clipping.
        float_ops: float32 operations that are lowered instead, in order, if constants do not fit
            the int8 kernel.
        unfit: why it is computed in float32 and not in int8; empty for a float32 operation.
        parts: operations that one kernel computes for it, or that are lowered one by one instead if
            constants do not fit that kernel; in order.
    """

    limits: Range = UNBOUNDED
    function: str = "clamp"
    residual: ir.Value | None = None
    residual_fits: bool = True
    residual_last: bool = False
    float_ops: Sequence[Op] = ()
    unfit: str = ""
    parts: Sequence[Op] = ()

    def reads(self) -> list[ir.Value]:
        """Return the distinct values that it reads, the residual included."""
        residual = [] if self.residual is None else [self.residual]
        return list(dict.fromkeys([*super().reads(), *residual]))

    @property
    def unfit_key(self) -> str:
        """The key in `Builder.unfit`: the first output, which a part may have, too."""
        name = self.output.name or ""
        return f"{self.kind} {name}" if self.parts else name

    @property
    def accumulate(self) -> str:
        """The dtype of accumulators that the model requests; empty if it requests none."""
        return next((a for n in self.nodes if (a := n.metadata_props.get(ACCUMULATE))), "")

    @property
    def activations(self) -> str:
        """The quantization of activations that the model requests; empty if it requests none."""
        return next((a for n in self.nodes if (a := n.metadata_props.get(ACTIVATIONS))), "")

    @property
    def clamped(self) -> bool:
        """Whether the output is clamped."""
        return self.limits != (-math.inf, math.inf)

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue that is applied to accumulators."""
        order = "after" if self.residual_last else "before"
        return Epilogue(self.function, self.limits, "" if self.residual is None else order)


def check_floats(op: Op, facts: Facts, count: int = 1) -> str | None:
    """Check that the first `count` inputs are float tensors of known, supported rank."""
    for value in op.inputs[:count]:
        if value is None:
            continue
        reason = check_dtype(value, facts, ir.DataType.FLOAT)
        if reason:
            return reason
    return None


def check_dtype(value: ir.Value, facts: Facts, *dtypes: ir.DataType) -> str | None:
    """Check that a value is a tensor of one of `dtypes`, of known, supported rank.

    Narrow floats are accepted where float32 is: they are upcast on entry to a partition.
    """
    dtype = facts.dtype(value)
    if dtype is None:
        return f"the element type of {value.name!r} is not known"
    fits = dtype in dtypes or (dtype in NARROW and ir.DataType.FLOAT in dtypes)
    if not fits:
        names = " or ".join(d.name.lower() for d in dtypes)
        return f"{value.name!r} is {dtype.name.lower()}; the kernel is for {names}"
    rank = facts.rank(value)
    if rank is None:
        return f"the rank of {value.name!r} is not known"
    if rank > 6:
        return f"{value.name!r} has {rank} dimensions; XNNPACK supports 6 at most"
    return None
