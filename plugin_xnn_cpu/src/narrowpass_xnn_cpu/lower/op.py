"""Operations as they are lowered: one ONNX node, or several that are computed as one."""

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
    """What is lowered as one, with what is fused into it.

    Attributes:
        limits: what the output is clamped to.
        function: what is applied to the output; one of `epilogue.FUNCTIONS`.
        residual: what is added to the output; None for nothing.
        residual_fits: whether that surely has the shape of the output.
        residual_last: whether it is added after the function, or the limits.
        otherwise: what is done instead, one after the other, where constants turn out not to fit.
        unfit: why it is not computed with bytes; empty where nobody meant it to be.
    """

    limits: Range = UNBOUNDED
    function: str = "clamp"
    residual: ir.Value | None = None
    residual_fits: bool = True
    residual_last: bool = False
    otherwise: Sequence[Op] = ()
    unfit: str = ""

    def reads(self) -> list[ir.Value]:
        """Return the values that it reads, the residual included; each once."""
        residual = [] if self.residual is None else [self.residual]
        return list(dict.fromkeys([*super().reads(), *residual]))

    @property
    def accumulate(self) -> str:
        """What its sums are to be kept in, as the model says; empty where it does not."""
        return next((a for n in self.nodes if (a := n.metadata_props.get(ACCUMULATE))), "")

    @property
    def activations(self) -> str:
        """How its activations are to be quantized, as the model says; empty where it does not."""
        return next((a for n in self.nodes if (a := n.metadata_props.get(ACTIVATIONS))), "")

    @property
    def clamped(self) -> bool:
        """Whether the output has bounds."""
        return self.limits != (-math.inf, math.inf)

    @property
    def epilogue(self) -> Epilogue:
        """What becomes of sums."""
        order = "after" if self.residual_last else "before"
        return Epilogue(self.function, self.limits, "" if self.residual is None else order)


def needs_floats(op: Op, facts: Facts, count: int = 1) -> str | None:
    """Check that the first `count` inputs are float32 tensors of known, possible rank."""
    for value in op.inputs[:count]:
        if value is None:
            continue
        reason = needs(value, facts, ir.DataType.FLOAT)
        if reason:
            return reason
    return None


def needs(value: ir.Value, facts: Facts, *dtypes: ir.DataType) -> str | None:
    """Check that a value is a tensor of one of `dtypes`, of known, possible rank.

    Narrow floats are taken where float32 is: they are widened on the way in.
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
        return f"{value.name!r} has {rank} dimensions; XNNPACK takes 6 at most"
    return None
