"""Matmuls with constant matrices: MatMul and Gemm, with their fused epilogue."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Slot
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import clamp
from narrowpass_xnn_cpu.lower.matmul.choices import fuses_epilogue
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul, QuantizeRows
from narrowpass_xnn_cpu.lower.matmul.computed import lower_computed
from narrowpass_xnn_cpu.lower.matmul.epilogue import PLAIN, emit, emit_separately
from narrowpass_xnn_cpu.lower.matmul.stacked import is_stacked, lower_stacked
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue


def is_constant_matrix(facts: Facts, value: ir.Value | None) -> bool:
    """Return whether a value is a constant, non-empty matrix."""
    dims = facts.dims(value)
    return facts.is_constant(value) and dims is not None and len(dims) == 2 and 0 not in dims


def matrix_of(op: Op, facts: Facts) -> Weight:
    """Return the constant matrix of a MatMul or Gemm as [C, O], times alpha."""
    kernel = facts.stored(op.required(1))
    if op.get("transB", 0):
        kernel = kernel.transpose(1, 0)
    alpha = np.float32(op.get("alpha", 1.0))
    return kernel if alpha == 1 else kernel.cast(np.dtype(np.float32)).times(alpha)


def is_complete(op: Op, facts: Facts) -> bool:
    """Return whether the third input of a matmul, if it has one, is a constant bias [O]."""
    return op.input(2) is None or _bias_of(op, facts, matrix_of(op, facts)) is not None


def _bias_of(op: Op, facts: Facts, kernel: Weight) -> Weight | None:
    return as_bias(facts, op.input(2), kernel.shape[1], np.float32(op.get("beta", 1.0)))


def constant_matmul(op: Op, builder: Builder, unfit: str = "") -> ConstantMatMul:
    """Return the computation of a MatMul or Gemm with a constant matrix.

    Without the epilogue where the third input is no bias, since its addition comes first.

    Args:
        op: the operation.
        builder: of the partition.
        unfit: see `ConstantMatMul.unfit`.
    """
    facts = builder.facts
    kernel = matrix_of(op, facts)
    rows = row_dims(op, facts) if op.kind == "Gemm" else (facts.dims(op.input(0)) or ())[:-1]
    return ConstantMatMul(
        op.epilogue if is_complete(op, facts) else Epilogue(),
        op.residual_fits,
        weight=kernel,
        bias=_bias_of(op, facts, kernel),
        rows=count_rows(rows),
        accumulate=op.accumulate,
        activations=op.activations,
        embedding=_is_embedding(op.required(1)),
        unfit=unfit,
        deterministic=builder.numerics.deterministic,
    )


def row_dims(op: Op, facts: Facts) -> Sequence[int | str | None]:
    """Return the dimension of the rows of a Gemm; empty if its rank is not known."""
    dims = facts.dims(op.input(0)) or ()
    return dims[1:] if op.get("transA", 0) else dims[:1]


def _is_embedding(matrix: ir.Value) -> bool:
    """Return whether a Gather reads the matrix, or its transpose, as an embedding."""
    node = matrix.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Transpose" else matrix
    return source is not None and any(
        use.node.op_type == "Gather" and use.idx == 0 for use in source.uses()
    )


def rows_for(builder: Builder, rows: Slot, matmul: ConstantMatMul) -> Slot:
    """Return the operand of a matmul: rows, or their quantization, which matmuls share."""
    if not matmul.quantizes_rows:
        return rows
    channels = matmul.channels
    quantized = Slot(f"{rows.name} (rows)", np.dtype(np.uint8))
    return builder.derived(rows, ("int8", channels), QuantizeRows(channels), quantized)


def count_rows(dims: Sequence[int | str | None]) -> int | None:
    """Return the number of rows with these leading dimensions; None if it is not known."""
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(known) if dims and len(known) == len(dims) else None


def as_bias(facts: Facts, value: ir.Value | None, outputs: int, beta: np.float32) -> Weight | None:
    """Return a constant times beta as bias [outputs]; None if it differs between rows."""
    if value is None or not facts.is_constant(value):
        return None
    weight = facts.weight(value)
    if weight.size not in (1, outputs) or (weight.shape or (1,))[-1] != weight.size:
        return None
    scaled = weight.reshape(weight.size).times(beta)
    if weight.size == outputs:
        return scaled
    return scaled.then(f"repeat {outputs}", lambda x: np.repeat(x, outputs), [outputs])


def _check_gemm(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    if facts.rank(op.input(0)) != 2 or facts.rank(op.input(1)) != 2:
        return "its operands are not matrices"
    return None


def _gemm_fuses_epilogue(op: Op, facts: Facts) -> bool:
    if not is_constant_matrix(facts, op.input(1)):
        return op.input(2) is None or _is_row(op, facts)
    kernel = facts.stored(op.required(1))
    outputs = kernel.shape[0 if op.get("transB", 0) else 1]
    added = op.input(2)
    complete = added is None or as_bias(facts, added, outputs, np.float32(1)) is not None
    if op.get("alpha", 1.0) != 1.0:
        kernel = kernel.cast(np.dtype(np.float32))
    rows = count_rows(row_dims(op, facts))
    return complete and fuses_epilogue(kernel, rows, target.current())


def _gemm(op: Op, builder: Builder) -> None:
    facts = builder.facts
    given, matrix, added = op.required(0), op.required(1), op.input(2)
    beta = np.float32(op.get("beta", 1.0))
    if not is_constant_matrix(facts, matrix):
        _gemm_of_computed(op, builder, beta)
        return
    rows = builder.slot_of(given, (1, 0) if op.get("transA", 0) else None)
    complete = is_complete(op, facts)
    matmul = constant_matmul(op, builder, builder.unfit.get(op.unfit_key, ""))
    if complete:
        _emit(op, builder, matmul, [rows_for(builder, rows, matmul)], identity(2))
        return
    slot = builder.intermediate(matmul, [rows_for(builder, rows, matmul)], op.output)
    _add(op, builder, slot, added, beta)


def _is_row(op: Op, facts: Facts) -> bool:
    """Return whether the third input is known to be [N], N being the columns of the output."""
    columns = (facts.dims(op.output) or (None,))[-1]
    return isinstance(columns, int) and facts.dims(op.input(2)) == (columns,)


def _gemm_of_computed(op: Op, builder: Builder, beta: np.float32) -> None:
    """Lower alpha · A·B + beta · C where A and B are activations."""
    facts, added = builder.facts, op.input(2)
    transposed = bool(op.get("transA", 0)), bool(op.get("transB", 0))
    if added is None or _is_row(op, facts):
        bias = None if added is None else _scaled(builder, added, beta)
        lower_computed(op, builder, transposed=transposed, bias=bias)
        return
    slot = lower_computed(op, builder, transposed=transposed, complete=False)
    if slot is not None:
        _add(op, builder, slot, added, beta)


def _emit(
    op: Op, builder: Builder, matmul: ConstantMatMul, operands: Sequence[Slot], perm: Sequence[int]
) -> None:
    """Emit a matmul with its epilogue, which the kernel of an upcast matrix may lack."""
    fused = not matmul.unfit or op.epilogue.is_clamp or target.current().has_fp32_gemm
    if fused:
        emit(op, builder, matmul, operands, tuple(perm))
        return
    plain = dataclasses.replace(matmul, epilogue=PLAIN)
    emit_separately(op, builder, plain, operands, tuple(perm))


def _scaled(builder: Builder, added: ir.Value, beta: np.float32) -> Slot:
    """Return the slot of beta · C."""
    if builder.facts.is_constant(added):
        return builder.constant_slot(added.name or "", builder.facts.wide(added) * beta)
    slot = builder.slot_of(added)
    if beta == 1:
        return slot
    factor = builder.constant_slot(f"{added.name}.beta", beta.astype(slot.dtype))
    return builder.intermediate(Binary("multiply"), [slot, factor], added)


def _add(op: Op, builder: Builder, slot: Slot, added: ir.Value | None, beta: np.float32) -> None:
    """Emit the addition of beta · C that is no bias, and the clamp."""
    perm = identity(builder.rank(op.output))
    if added is not None:
        other = _scaled(builder, added, beta)
        slot = builder.intermediate(Binary("add"), [slot, other], op.output)
    if op.clamped:
        clamp(builder, slot, op.output, perm, op)
    else:
        builder.alias(op.output, slot, perm)


def check_matmul(op: Op, facts: Facts) -> str | None:
    """Return why a matmul cannot be lowered; None if it can."""
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    ranks = facts.rank(op.input(0)), facts.rank(op.input(1))
    if 0 in ranks:
        return "its operands must have dimensions"
    if facts.is_constant(op.input(1)) and 0 in (facts.dims(op.input(1)) or ()):
        return "its matrix is empty"
    return None


def _matmul_fuses_epilogue(op: Op, facts: Facts) -> bool:
    matrix = op.required(1)
    if not is_constant_matrix(facts, matrix):
        return True
    rows = count_rows((facts.dims(op.input(0)) or ())[:-1])
    return fuses_epilogue(facts.stored(matrix), rows, target.current())


def lower_matmul(op: Op, builder: Builder) -> None:
    """Emit a matmul; `linear` has a bias as its third input."""
    facts = builder.facts
    a, b = op.required(0), op.required(1)
    if is_constant_matrix(facts, b):
        rank_a = builder.rank(a)
        matmul = constant_matmul(op, builder, builder.unfit.get(op.unfit_key, ""))
        perm = builder.layout(a)
        if perm[-1] != rank_a - 1:
            perm = identity(rank_a)
        _emit(op, builder, matmul, [rows_for(builder, builder.slot_of(a, perm), matmul)], perm)
        return
    if is_stacked(op, facts) and lower_stacked(op, builder):
        return
    added = op.input(2)
    lower_computed(op, builder, bias=None if added is None else builder.slot_of(added))


RULES: tuple[Rule, ...] = (
    *rules(
        "Gemm",
        lower=_gemm,
        check=_check_gemm,
        fuses_clamp=True,
        fuses_epilogue=_gemm_fuses_epilogue,
    ),
    *rules(
        "MatMul",
        "linear",
        lower=lower_matmul,
        check=check_matmul,
        fuses_clamp=True,
        fuses_epilogue=_matmul_fuses_epilogue,
    ),
)
