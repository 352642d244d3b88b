"""Gates: x · logistic(slope · x + cubic · x³), times another value, in one pass.

SiLU has a slope of 1; QuickGelu one of 1.702; and GELU by tanh is the one that has a cubic term,
since (1 + tanh(u)) / 2 is the logistic function of 2 · u.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.fusion.matching import part
from narrowpass_xnn_cpu.lower.op import Op, needs_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedOp
from narrowpass_xnn_cpu.native import kernels

_TANH_SLOPE = 2 * math.sqrt(2 / math.pi)
_PRODUCTS = ("MatMul", "linear", "Gemm")


@dataclass(frozen=True)
class Gate(Computation):
    """Rows gated, and multiplied with others.

    Operands are the gated rows, and their factor if there is one; they may be one slot, of which
    both are parts.

    Attributes:
        slope: see above.
        cubic: see above.
        parts: where each operand starts in its rows; empty where they are whole.
        width: how many columns of each row they are; 0 where they are whole.
    """

    mnemonic = "gate"
    slope: float
    cubic: float
    parts: tuple[int, ...] = ()
    width: int = 0

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`."""
        return () if self.parts else (0, 1)

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape = shapes[0]
        if any(other != shape for other in shapes):
            raise BackendError(" and ".join(str(list(s)) for s in shapes) + " are to be equal")
        result = (*shape[:-1], self.width) if self.parts else shape
        if not elements(result):
            return Run(result)
        if self.parts:
            rows, columns = elements(shape[:-1]), self.width
            if max(self.parts) + columns > shape[-1]:
                raise BackendError(f"parts of {columns} do not lie in {list(shape)}")
            places = [(start, shape[-1]) for start in self.parts]
        else:
            # Nothing but the number of elements matters: pieces that threads may share.
            columns = math.gcd(elements(shape), 1 << 10)
            rows = elements(shape) // columns
            places = [(0, columns) for _ in shapes]
        factor = places[1] if len(places) > 1 else None
        params = kernels.gate(rows, columns, places[0], factor, self.slope, self.cubic)
        return Run(result, "NP_GATE", params=params)


def _check(op: Op, facts: Facts) -> str | None:
    return needs_floats(op, facts, 2)


def _gate(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    parts = tuple(op.get("parts", ()))
    rank = builder.rank(values[0])
    perm = builder.layout(values[0])
    if parts and perm[-1] != rank - 1:
        perm = identity(rank)
    slots = [builder.at(value, perm) for value in values]
    slope, cubic = op.get("slope", 1.0), op.get("cubic", 0.0)
    builder.compute(Gate(slope, cubic, parts, op.get("width", 0)), slots, op.output, perm)


def with_factors(ops: Sequence[Op], facts: Facts) -> list[Op]:
    """Join gates with the products of them and other values of surely the same shape."""
    makers = {op.output: op for op in ops}
    joined: dict[int, Op] = {}
    gone: set[int] = set()
    for op in ops:
        if op.kind != "Mul" or len(op.inputs) != 2 or op.clamped:
            continue
        for x, factor in (op.inputs, op.inputs[::-1]):
            gate = None if x is None else makers.get(x)
            found = None if gate is None or factor is None else _gated(gate)
            if (
                gate is None
                or factor is None
                or found is None
                or facts.only_user(gate.output) is None
            ):
                continue
            inputs, attributes = _operands(gate.required(0), factor, makers, facts)
            if inputs:
                nodes = [*gate.nodes, *op.nodes]
                joined[id(op)] = Op(
                    "gate", inputs, op.outputs, found | attributes, op.version, nodes
                )
                gone.add(id(gate))
                break
    return [joined.get(id(op), op) for op in ops if id(op) not in gone]


def _gated(op: Op) -> dict[str, object] | None:
    """Give slope and cubic term of an operation that is a gate; None where it is none."""
    tanh = op.kind == "Gelu" and op.get("approximate", "none") == "tanh"
    if op.clamped or (op.kind == "gate" and len(op.inputs) > 1):
        return None
    if op.kind == "tanh-gelu" or tanh:
        return {"slope": _TANH_SLOPE, "cubic": _TANH_SLOPE * 0.044715}
    return dict(op.attributes) if op.kind == "gate" else {} if op.kind == "silu" else None


def _operands(
    x: ir.Value, factor: ir.Value, makers: dict[ir.Value, Op], facts: Facts
) -> tuple[list[ir.Value], dict[str, object]]:
    """Give the operands of a gate and its factor; none where their shapes may differ."""
    first, second = part(x, facts), part(factor, facts)
    if first is not None and second is not None and first.whole is second.whole:
        ranges = first.range, second.range
        if len(ranges[0]) == len(ranges[1]) > 0 and all(r.step == 1 for r in ranges):
            attributes = {"parts": tuple(r.start for r in ranges), "width": len(ranges[0])}
            return [first.whole, first.whole], attributes
    products = [makers.get(value) for value in (x, factor)]
    known = [op for op in products if op is not None and op.kind in _PRODUCTS]
    if len(known) == 2 and known[0].inputs[0] is known[1].inputs[0]:
        matrices = [op.input(1) for op in known]
        turned = [op.get("transA", 0) for op in known]
        constant = all(facts.is_constant(m) and facts.rank(m) == 2 for m in matrices)
        # A residual that is broadcast makes a result larger than the rows are.
        constant = constant and all(op.residual is None or op.residual_fits for op in known)
        widths = [(facts.dims(op.output) or (None,))[-1] for op in known]
        if constant and isinstance(widths[0], int) and widths[0] == widths[1] and not any(turned):
            return [x, factor], {}
    return [], {}


RULES: tuple[Rule, ...] = (*rules("gate", lower=_gate, check=_check),)
