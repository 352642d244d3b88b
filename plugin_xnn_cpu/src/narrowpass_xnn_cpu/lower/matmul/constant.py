"""Matmuls with constant matrices: MatMul and Gemm, with their fused epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import clamp
from narrowpass_xnn_cpu.lower.matmul.choices import (
    Choice,
    choices,
    fuses_epilogue,
    is_gemm,
    shares_quantized_rows,
)
from narrowpass_xnn_cpu.lower.matmul.computed import lower_computed
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue, emit
from narrowpass_xnn_cpu.lower.matmul.packed import PackedConstantMatMul
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedOp
from narrowpass_xnn_cpu.lowered.record import keyword_record, record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own.gemv import Gemv
from narrowpass_xnn_cpu.native.own.int8_matmul import rows_to_int8
from narrowpass_xnn_cpu.native.own.packed import PackedMatmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.table import select
from narrowpass_xnn_cpu.native.table.selected import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@keyword_record
class ConstantMatMul(WithEpilogue):
    """A matmul of rows, of any number of leading axes, and a constant matrix.

    Operands are the rows, float32 or those of `QuantizeRows`, and the residual.

    Attributes:
        weight: [C, O], in its stored dtype.
        bias: float32 [O], or None.
        rows: their number, if it is known.
        accumulate: the requested dtype of accumulators; empty if the model requests none.
        activations: ``dynamic`` for dynamic per-token quantization; else empty.
        embedding: whether the matrix is a tied embedding, whose stored form is in memory anyway.
        unfit: why rows are not quantized although the model requests it; else empty.
    """

    mnemonic = "matmul"
    weight: Weight
    bias: Weight | None = None
    rows: int | None = None
    accumulate: str = ""
    activations: str = ""
    embedding: bool = False
    unfit: str = ""

    @property
    def channels(self) -> int:
        """Input channels, the length of a row."""
        return self.weight.shape[0]

    @property
    def quantizes_rows(self) -> bool:
        """Whether the operand is the result of `QuantizeRows`."""
        if self.unfit:
            return False
        return shares_quantized_rows(self.weight, self.activations, target.current())

    @property
    def is_gemm(self) -> bool:
        """Whether the own float32 GEMM computes it for any number of rows."""
        processor = target.current()
        return is_gemm(next(self.choices(processor)), processor)

    def choices(self, processor: Target) -> Iterator[Choice]:
        """Yield the problems that it may be computed as, in order of preference."""
        return choices(
            self.weight,
            self.bias,
            self.epilogue,
            processor,
            rows=self.rows,
            accumulate=self.accumulate,
            activations="" if self.unfit else self.activations,
            embedding=self.embedding,
        )

    def kernel_name(self, op: LoweredOp, packed: PackedConstantMatMul) -> str:
        """See `Computation.kernel_name`."""
        return packed.kernel

    def precision(self, op: LoweredOp, packed: PackedConstantMatMul) -> str:
        """See `Computation.precision`."""
        known = not self.unfit or self.unfit in packed.precision
        return packed.precision if known else f"{packed.precision}: {self.unfit}"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return select(next(self.choices(target)).problem, target).selection

    def pack(self, op: LoweredOp, session: Session | None) -> PackedConstantMatMul:
        """See `Computation.pack`."""
        found = self.choices(target.current())
        return PackedConstantMatMul(found, self.epilogue, self.rows, session)

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, packed = shapes[0], step.packed
        if not self.quantizes_rows and shape[-1] != packed.channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {packed.channels}")
        result = (*shape[:-1], packed.outputs)
        epilogue = self.fitting(shapes, result)
        rows = elements(shape[:-1])
        if not rows:
            return Run(result)
        operator = packed.operator(rows)
        if isinstance(operator, PackedMatmul | Gemv):
            params = operator.reshape(rows, sizing.pool, epilogue=epilogue)
        else:
            params = operator.reshape(rows, sizing.pool)
        return Run(result, operator.call, operator, params)


@record
class QuantizeRows(Computation):
    """Dynamic per-token quantization of rows, which matmuls share.

    Attributes:
        channels: length of a row.
    """

    mnemonic = "quantize_rows"
    kernel = "rows to int8"
    channels: int

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        channels = self.channels
        if shape[-1] != channels:
            raise BackendError(f"rows of {shape[-1]} do not fit a matrix for {channels}")
        rows = elements(shape[:-1])
        params = rows_to_int8(max(1, rows), channels)
        result = (*shape[:-1], params.row_bytes)
        return Run(result, "NP_INT8_ROWS", params=params) if rows else Run(result)


def _is_constant_matrix(facts: Facts, value: ir.Value | None) -> bool:
    """Return whether a value is a constant, non-empty matrix."""
    dims = facts.dims(value)
    return facts.is_constant(value) and dims is not None and len(dims) == 2 and 0 not in dims


def _check_gemm(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    if facts.rank(op.input(0)) != 2 or facts.rank(op.input(1)) != 2:
        return "its operands are not matrices"
    if (
        op.input(2) is not None
        and op.get("beta", 1.0) != 1.0
        and not facts.is_constant(op.input(2))
    ):
        return "a beta other than 1 is covered for constants only"
    return None


def _gemm_fuses_epilogue(op: Op, facts: Facts) -> bool:
    if not _is_constant_matrix(facts, op.input(1)):
        return op.input(2) is None or _is_row(op, facts)
    kernel = facts.stored(op.required(1))
    outputs = kernel.shape[0 if op.get("transB", 0) else 1]
    added = op.input(2)
    complete = added is None or as_bias(facts, added, outputs, np.float32(1)) is not None
    if op.get("alpha", 1.0) != 1.0:
        kernel = kernel.cast(np.dtype(np.float32))
    rows = _count(_row_dims(op, facts))
    return complete and fuses_epilogue(kernel, rows, target.current())


def _row_dims(op: Op, facts: Facts) -> Sequence[int | str | None]:
    """Return the dimension of the rows of a Gemm; empty if its rank is not known."""
    dims = facts.dims(op.input(0)) or ()
    return dims[1:] if op.get("transA", 0) else dims[:1]


def _gemm(op: Op, builder: Builder) -> None:
    facts = builder.facts
    given, matrix, added = op.required(0), op.required(1), op.input(2)
    transposed = bool(op.get("transB", 0))
    beta = np.float32(op.get("beta", 1.0))
    if not _is_constant_matrix(facts, matrix):
        _gemm_of_computed(op, builder, beta)
        return
    rows = builder.slot_of(given, (1, 0) if op.get("transA", 0) else None)
    kernel = facts.stored(matrix)
    if transposed:
        kernel = kernel.transpose(1, 0)
    alpha = np.float32(op.get("alpha", 1.0))
    if alpha != 1:
        kernel = kernel.cast(np.dtype(np.float32)).times(alpha)
    bias = as_bias(facts, added, kernel.shape[1], beta)
    complete = added is None or bias is not None
    leading = _row_dims(op, facts)
    matmul = _matmul_of(op, builder, kernel, bias, op.epilogue if complete else Epilogue(), leading)
    if complete:
        emit(op, builder, matmul, [rows_for(builder, rows, matmul)], identity(2))
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


def _matmul_of(
    op: Op,
    builder: Builder,
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    leading: Sequence[int | str | None],
) -> ConstantMatMul:
    """Return the matmul of rows with these leading dimensions and a constant matrix."""
    return ConstantMatMul(
        epilogue,
        op.residual_fits,
        weight=kernel,
        bias=bias,
        rows=_count(leading),
        accumulate=op.accumulate,
        activations=op.activations,
        embedding=_is_embedding(op.required(1)),
        unfit=builder.unfit.get(op.output.name or "", ""),
    )


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


def _count(dims: Sequence[int | str | None]) -> int | None:
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


def _scaled(builder: Builder, added: ir.Value, beta: np.float32) -> Slot:
    """Return the slot of beta · C; beta is 1 unless C is constant."""
    if builder.facts.is_constant(added):
        return builder.constant_slot(added.name or "", builder.facts.wide(added) * beta)
    return builder.slot_of(added)


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
    if not _is_constant_matrix(facts, matrix):
        return True
    rows = _count((facts.dims(op.input(0)) or ())[:-1])
    return fuses_epilogue(facts.stored(matrix), rows, target.current())


def lower_matmul(op: Op, builder: Builder) -> None:
    """Emit a matmul; `linear` has a bias as its third input."""
    facts = builder.facts
    a, b = op.required(0), op.required(1)
    if _is_constant_matrix(facts, b):
        rank_a = builder.rank(a)
        kernel = facts.stored(b)
        bias = as_bias(facts, op.input(2), kernel.shape[1], np.float32(1))
        leading = (facts.dims(a) or ())[:-1]
        matmul = _matmul_of(op, builder, kernel, bias, op.epilogue, leading)
        perm = builder.layout(a)
        if perm[-1] != rank_a - 1:
            perm = identity(rank_a)
        emit(op, builder, matmul, [rows_for(builder, builder.slot_of(a, perm), matmul)], perm)
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
