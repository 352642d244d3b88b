"""Operations as they are lowered: one ONNX node, or several that are computed as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass.framework.classify import ACCUMULATE, ACTIVATIONS
from narrowpass_xnn_cpu.lower.facts import NARROW, Facts
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import UNBOUNDED, Range

if TYPE_CHECKING:
    from narrowpass_xnn_cpu.lower.builder import Builder

OUR_DOMAIN = "narrowpass.xnn_cpu"
"""Of nodes that only this backend writes."""

GUARD = "Guard"
"""A node that says which value a condition had when its graph was compiled."""


@dataclass
class Op:
    """What is lowered as one.

    Attributes:
        kind: the ONNX operator that it does, or a name of ours in lower case.
        inputs: as of that operator; None for those left out.
        outputs: as of that operator.
        attributes: as of that operator, those that are given.
        version: of the operator set.
        nodes: the nodes that it stands for.
        limits: what the output is clamped to.
        function: what is applied to the output; one of `epilogue.FUNCTIONS`.
        residual: what is added to the output; None for nothing.
        residual_fits: whether that surely has the shape of the output.
        residual_last: whether it is added after the function, or the limits.
        superseded: nodes before it whose results nobody needs, since it does without.
        otherwise: what is done instead, one after the other, where constants turn out not to fit.
        unfit: why it is not computed with bytes; empty where nobody meant it to be.
    """

    kind: str
    inputs: Sequence[ir.Value | None]
    outputs: Sequence[ir.Value]
    attributes: Mapping[str, Any]
    version: int
    nodes: list[ir.Node] = field(default_factory=list)
    limits: Range = UNBOUNDED
    function: str = "clamp"
    residual: ir.Value | None = None
    residual_fits: bool = True
    residual_last: bool = False
    superseded: list[ir.Node] = field(default_factory=list)
    otherwise: Sequence[Op] = ()
    unfit: str = ""

    @classmethod
    def of(cls, node: ir.Node, version: int) -> Op:
        """Make the operation of one node."""
        attributes = {
            name: value.value
            for name, value in node.attributes.items()
            if not value.is_ref() and value.type != ir.AttributeType.GRAPH
        }
        return cls(
            kind=node.op_type,
            inputs=list(node.inputs),
            outputs=list(node.outputs),
            attributes=attributes,
            version=version,
            nodes=[node],
        )

    def input(self, index: int) -> ir.Value | None:
        """Give an input; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def required(self, index: int) -> ir.Value:
        """Give an input that the operator must have."""
        value = self.input(index)
        if value is None:
            raise ValueError(f"{self.kind} lacks input {index}")
        return value

    @property
    def output(self) -> ir.Value:
        """The first output."""
        return self.outputs[0]

    def get(self, name: str, default: Any) -> Any:
        """Give an attribute, or its default."""
        return self.attributes.get(name, default)

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


Check = Callable[[Op, Facts], str | None]
"""Gives the reason why an operation cannot be lowered; None where it can."""


@dataclass(frozen=True)
class Rule:
    """How an operator is lowered.

    Attributes:
        kind: the operator, or a name of ours.
        family: the module's name.
        check: whether it can be.
        lower: adds the steps to a builder.
        clamps: whether `Op.limits` are taken.
        ends: tells of an operation that can be lowered whether its kernel is one of ours, which
            takes `Op.function` and `Op.residual`; None where none does.
        domain: of the operator; empty for ONNX's own and for names of ours.
    """

    kind: str
    family: str
    check: Check
    lower: Callable[[Op, Builder], None]
    clamps: bool = False
    ends: Callable[[Op, Facts], bool] | None = None
    domain: str = ""


RULES: dict[str, Rule] = {}


def lowers(
    *kinds: str,
    check: Check,
    clamps: bool = False,
    ends: Callable[[Op, Facts], bool] | None = None,
    domain: str = "",
) -> Callable[[Callable[[Op, Builder], None]], Callable[[Op, Builder], None]]:
    """Register a function as what lowers operators of these kinds."""

    def register(function: Callable[[Op, Builder], None]) -> Callable[[Op, Builder], None]:
        family = function.__module__.rpartition(".")[2]
        for kind in kinds:
            RULES[kind] = Rule(kind, family, check, function, clamps, ends, domain)
        return function

    return register


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
