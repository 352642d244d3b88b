"""Gated activations: x · sigmoid(slope · x + cubic · x³) · factor, in one pass.

The slope is 1 for SiLU and 1.702 for QuickGelu. The tanh approximation of GELU has a cubic term,
since (1 + tanh(u)) / 2 = sigmoid(2 · u).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.fusion.matching import slice_of
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

_TANH_SLOPE = 2 * math.sqrt(2 / math.pi)
_MATMULS = ("MatMul", "linear", "Gemm")


@record
class Gate(Computation):
    """A gated activation.

    Operands are x and optionally the factor. Both may be slices of one slot.

    Attributes:
        slope: see above.
        cubic: see above.
        parts: first column of each operand in its slot; empty if they are no slices.
        width: number of columns of the slices; 0 if they are no slices.
    """

    mnemonic = "gate"
    slope: float
    cubic: float
    parts: tuple[int, ...] = ()
    width: int = 0

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`."""
        return () if self.parts else (0, 1)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 1 if self.parts else 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
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
            # Elementwise: any split into rows for threads is valid.
            columns = math.gcd(elements(shape), 1 << 10)
            rows = elements(shape) // columns
            places = [(0, columns) for _ in shapes]
        factor = places[1] if len(places) > 1 else None
        params = kernels.gate(rows, columns, places[0], factor, self.slope, self.cubic)
        return Run(result, "NP_GATE", params=params)


def _check(op: Op, facts: Facts) -> str | None:
    return check_floats(op, facts, 2)


def _gate(op: Op, builder: Builder) -> None:
    values = [value for value in op.inputs if value is not None]
    parts = tuple(op.get("parts", ()))
    rank = builder.rank(values[0])
    perm = builder.layout(values[0])
    if parts and perm[-1] != rank - 1:
        perm = identity(rank)
    slots = [builder.slot_of(value, perm) for value in values]
    slope, cubic = op.get("slope", 1.0), op.get("cubic", 0.0)
    builder.compute(Gate(slope, cubic, parts, op.get("width", 0)), slots, op.output, perm)


def fuse_gates(ops: Sequence[Op], facts: Facts) -> list[Op]:
    """Fuse each gated activation with the Mul by a factor that is known to have its shape."""
    producers = {op.output: op for op in ops}
    fused: dict[int, Op] = {}
    gone: set[int] = set()
    for op in ops:
        if op.kind != "Mul" or len(op.inputs) != 2 or op.clamped:
            continue
        for x, factor in (op.inputs, op.inputs[::-1]):
            gate = None if x is None else producers.get(x)
            found = None if gate is None or factor is None else _gate_attributes(gate)
            if (
                gate is None
                or factor is None
                or found is None
                or facts.only_user(gate.output) is None
            ):
                continue
            inputs, attributes = _operands(gate.required(0), factor, producers, facts)
            if inputs:
                nodes = [*gate.nodes, *op.nodes]
                fused[id(op)] = Op(
                    "gate", inputs, op.outputs, found | attributes, op.version, nodes
                )
                gone.add(id(gate))
                break
    return [fused.get(id(op), op) for op in ops if id(op) not in gone]


def _gate_attributes(op: Op) -> dict[str, object] | None:
    """Return slope and cubic term of a gated activation without a factor; None for others."""
    tanh = op.kind == "Gelu" and op.get("approximate", "none") == "tanh"
    if op.clamped or (op.kind == "gate" and len(op.inputs) > 1):
        return None
    if op.kind == "tanh-gelu" or tanh:
        return {"slope": _TANH_SLOPE, "cubic": _TANH_SLOPE * 0.044715}
    return dict(op.attributes) if op.kind == "gate" else {} if op.kind == "silu" else None


def _operands(
    x: ir.Value, factor: ir.Value, producers: dict[ir.Value, Op], facts: Facts
) -> tuple[list[ir.Value], dict[str, object]]:
    """Return x and the factor, and attributes of slices; empty if their shapes may differ."""
    first, second = slice_of(x, facts), slice_of(factor, facts)
    if first is not None and second is not None and first.whole is second.whole:
        ranges = first.range, second.range
        if len(ranges[0]) == len(ranges[1]) > 0 and all(r.step == 1 for r in ranges):
            attributes = {"parts": tuple(r.start for r in ranges), "width": len(ranges[0])}
            return [first.whole, first.whole], attributes
    matmuls = [producers.get(value) for value in (x, factor)]
    known = [op for op in matmuls if op is not None and op.kind in _MATMULS]
    if len(known) == 2 and known[0].inputs[0] is known[1].inputs[0]:
        matrices = [op.input(1) for op in known]
        transposed = [op.get("transA", 0) for op in known]
        constant = all(facts.is_constant(m) and facts.rank(m) == 2 for m in matrices)
        # A residual that broadcasts may extend the result of the matmul.
        constant = constant and all(op.residual is None or op.residual_fits for op in known)
        widths = [(facts.dims(op.output) or (None,))[-1] for op in known]
        if (
            constant
            and isinstance(widths[0], int)
            and widths[0] == widths[1]
            and not any(transposed)
        ):
            return [x, factor], {}
    return [], {}


RULES: tuple[Rule, ...] = (*rules("gate", lower=_gate, check=_check),)
