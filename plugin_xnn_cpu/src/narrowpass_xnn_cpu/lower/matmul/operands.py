"""What a matmul with a constant matrix is computed from: matrix, bias, rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Slot
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul, QuantizeRows
from narrowpass_xnn_cpu.lower.op import Op
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
