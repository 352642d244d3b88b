"""Matmuls of the same rows that one kernel computes: projections to q, k and v; gated MLPs.

Matmuls with constant matrices that are packed in blocks of the same form, and read the same rows,
become one operation. Its result has theirs one after the other, so that each is a view. Two of them
whose results a Mul alone reads, such as SiLU(gate) · up, become one with a single result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.matmul.choices import joins_rows
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul
from narrowpass_xnn_cpu.lower.matmul.constant import (
    check_matmul,
    constant_matmul,
    is_complete,
    is_constant_matrix,
    matrix_of,
)
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own.block_quantized import JoinedMatmul
from narrowpass_xnn_cpu.native.own.packed import PackedMatmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import create_matmul
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session

_KINDS = "MatMul", "linear", "Gemm"


@record
class JoinedMatMul(Computation):
    """Matmuls of the operand, float32 rows of any number of leading axes.

    The last axis of the result has the columns of all matmuls, but elements lie as those of one
    result after the other: they are read by `Segment` only. Where the matmuls are gated, the result
    is theirs multiplied.

    Attributes:
        matmuls: with equal numbers of input channels, blocks and activations; without residuals.
        gated: whether the results of two are multiplied.
    """

    mnemonic = "joined_matmul"
    matmuls: tuple[ConstantMatMul, ...]
    gated: bool = False

    def kernel_name(self, op: LoweredOp, packed: JoinedMatmul) -> str:
        """See `Computation.kernel_name`."""
        return f"{'gated' if self.gated else 'joined'} fully connected"

    def precision(self, op: LoweredOp, packed: JoinedMatmul) -> str:
        """See `Computation.precision`."""
        return next(self.matmuls[0].choices(target.current())).precision

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        found = self.matmuls[0].select(op, target)
        # The name does not depend on what is packed, and nothing is packed at this stage.
        name = f"own {self.kernel_name(op, None)} ({JoinedMatmul.call})"  # type: ignore[arg-type]
        reason = "rows are read and quantized once; threads meet once"
        return Selection(name, f"{found.packing}, each matrix by itself", reason)

    def pack(self, op: LoweredOp, session: Session | None) -> JoinedMatmul:
        """See `Computation.pack`."""
        packed = []
        for matmul in self.matmuls:
            choice = next(matmul.choices(target.current()))
            try:
                operator = create_matmul(choice.problem, session)
            except BackendError as error:  # a scale that is infinite, say
                raise UnfitError(str(error)) from error
            if not isinstance(operator, PackedMatmul):
                raise UnfitError("its kernel is not for block-quantized matrices")
            packed.append(operator)
        return JoinedMatmul(packed, gated=self.gated)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 1

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,), packed = shapes, step.packed
        if shape[-1] != packed.channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {packed.channels}")
        columns = packed.outputs[0] if self.gated else sum(packed.outputs)
        result = (*shape[:-1], columns)
        rows = elements(shape[:-1])
        if not rows:
            return Run(result)
        return Run(result, packed.call, packed, packed.reshape(rows, sizing.pool))


@record
class Segment(Computation):
    """A view: the result of one of the matmuls of a `JoinedMatMul`, the operand.

    Attributes:
        columns: of the results before it.
        width: its own columns.
    """

    mnemonic = "segment"
    kernel = "view"
    columns: int
    width: int

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 1

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        leading = shapes[0][:-1]
        offset = elements(leading) * self.columns * step.op.output.dtype.itemsize
        return Run((*leading, self.width), view=offset)


def join_matmuls(ops: Sequence[Op], facts: Facts) -> list[Op]:
    """Join matmuls of the same rows: first two and the Mul of their results, then the others.

    A joined operation is scheduled where the first of its matmuls was: they read nothing else that
    is computed.

    Args:
        ops: each after those whose results it reads.
        facts: of the graph.
    """
    return _join(_join_gates(ops, facts), facts)


def _join_gates(ops: Sequence[Op], facts: Facts) -> list[Op]:
    producers = {op.output: op for op in ops if op.kind in _KINDS}
    joined: dict[int, Op] = {}
    gone: set[int] = set()
    for op in ops:
        plain = op.kind == "Mul" and op.epilogue == Epilogue()
        pair = [producers.get(value) for value in op.inputs if value is not None] if plain else []
        matmuls = [each for each in pair if each is not None]
        if len(matmuls) != 2 or matmuls[0] is matmuls[1]:
            continue
        keys = [_key(each, facts) for each in matmuls]
        widths = {matrix_of(each, facts).shape[1] for each in matmuls if all(keys)}
        alone = all(facts.only_user(each.output) in op.nodes for each in matmuls)
        if keys[0] is None or keys[0] != keys[1] or len(widths) != 1 or not alone:
            continue
        first, second = sorted(matmuls, key=lambda each: each.function == "clamp")
        joined[id(op)] = _joined("gated", (first, second), op.outputs, op)
        gone.update((id(first), id(second)))
    return [joined.get(id(op), op) for op in ops if id(op) not in gone]


def _join(ops: Sequence[Op], facts: Facts) -> list[Op]:
    groups: dict[object, list[Op]] = {}
    for op in ops:
        key = _key(op, facts)
        if key is not None:
            groups.setdefault(key, []).append(op)
    joined: dict[int, Op] = {}
    gone: set[int] = set()
    for first, *others in groups.values():
        if others:
            outputs = [each.output for each in (first, *others)]
            joined[id(first)] = _joined("joined", (first, *others), outputs)
            gone.update(map(id, others))
    return [joined.get(id(op), op) for op in ops if id(op) not in gone]


def _joined(kind: str, matmuls: Sequence[Op], outputs: Sequence[ir.Value], *rest: Op) -> Op:
    parts = (*matmuls, *rest)
    return Op(
        kind,
        [matmuls[0].input(0), *(value for each in matmuls for value in each.inputs[1:])],
        outputs,
        {},
        matmuls[0].version,
        [node for part in parts for node in part.nodes],
        superseded=[node for part in parts for node in part.superseded],
        parts=parts,
    )


def _key(op: Op, facts: Facts) -> tuple[ir.Value, str] | None:
    """Return a key that is equal for matmuls that can be joined; None for other operations."""
    rows = op.input(0)
    if op.kind not in _KINDS or rows is None or facts.is_constant(rows):
        return None
    if op.residual is not None or check_matmul(op, facts) is not None:
        return None
    matrix = op.required(1)
    if not is_constant_matrix(facts, matrix) or facts.is_constant(op.output):
        return None
    if op.kind == "Gemm" and (op.get("transA", 0) or facts.rank(rows) != 2):
        return None
    if not is_complete(op, facts):
        return None
    form = joins_rows(matrix_of(op, facts), op.activations)
    return (rows, form) if form else None


def _check(op: Op, facts: Facts) -> str | None:
    return next((reason for each in _matmuls(op) if (reason := check_matmul(each, facts))), None)


def _matmuls(op: Op) -> list[Op]:
    return [each for each in op.parts if each.kind in _KINDS]


def _lower(op: Op, builder: Builder) -> None:
    if builder.unfit.get(op.unfit_key):
        for part in op.parts:
            builder.lower(part)
        return
    rows = op.required(0)
    rank = builder.rank(rows)
    perm = builder.layout(rows)
    if perm[-1] != rank - 1:
        perm = identity(rank)
    matmuls = tuple(constant_matmul(each, builder) for each in _matmuls(op))
    operand = builder.slot_of(rows, perm)
    if op.kind == "gated":
        builder.compute(JoinedMatMul(matmuls, gated=True), [operand], op.output, perm)
        return
    slot = Slot(f"{op.output.name} (joined)", np.dtype(np.float32))
    builder.emit(JoinedMatMul(matmuls), [operand], slot)
    columns = 0
    for matmul, value in zip(matmuls, op.outputs, strict=True):
        width = matmul.weight.shape[1]
        view = builder.derived(slot, columns, Segment(columns, width), builder.new(value))
        builder.alias(value, view, perm)
        columns += width


RULES: tuple[Rule, ...] = (*rules("joined", "gated", lower=_lower, check=_check),)
