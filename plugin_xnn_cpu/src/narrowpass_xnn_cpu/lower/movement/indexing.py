"""Gather and Where."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise.typed import ANY, check_same_dtype
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Convert, broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.own.block_quantized import BlockEmbedding
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@record
class Gather(Computation):
    """Gather: rows of the first operand by index.

    Attributes:
        axis: of the rows.
    """

    mnemonic = "gather"
    axis: int

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`: those of the indices of a constant table."""
        return None if self.axis or op.operands[0].constant is None else 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, indices = shapes
        axis = self.axis
        result = (*shape[:axis], *indices, *shape[axis + 1 :])
        if not elements(indices):
            return Run(result)
        params = kernels.gather(
            elements(shape[:axis]),
            shape[axis],
            elements(indices),
            elements(shape[axis + 1 :]) * step.op.output.dtype.itemsize,
            step.op.operands[1].dtype.itemsize,
        )
        return Run(result, "NP_GATHER", params=params)


@record
class GatherInt8(Computation):
    """Rows of an int8 embedding, by index, dequantized to float32.

    Operands are int8 [rows, ...], indices, and scales: float32 [rows] or [1].
    """

    mnemonic = "gather_int8"
    kernel = "gather int8"

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`: of the indices."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        table, indices, scales = shapes
        result = (*indices, *table[1:])
        if not elements(result):
            return Run(result)
        params = kernels.gather_s8(
            table[0],
            elements(table[1:]),
            elements(indices),
            step.op.operands[1].dtype.itemsize,
            scales=elements(scales),
        )
        return Run(result, "NP_GATHER_S8", params=params)


@record
class GatherBlocks(Computation):
    """Rows of a block-quantized embedding, by index, dequantized to float32.

    The operand is the indices.

    Attributes:
        weight: [rows, columns].
    """

    mnemonic = "gather_blocks"
    weight: Weight

    def kernel_name(self, op: LoweredOp, packed: BlockEmbedding) -> str:
        """See `Computation.kernel_name`."""
        blocks = self.weight.blocks
        return "gather" if blocks is None else f"gather {blocks.element}"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        return Selection(
            f"own gather ({BlockEmbedding.call})",
            "panels of 32 rows, blocks with their scales",
            "a tied embedding is packed once; only gathered rows are dequantized",
        )

    def pack(self, op: LoweredOp, session: Session | None) -> BlockEmbedding:
        """See `Computation.pack`."""
        if self.weight.blocks is None:
            raise BackendError("an embedding of floats is not packed in blocks")
        return BlockEmbedding(self.weight.blocks, session)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`: of the indices."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (indices,), packed = shapes, step.packed
        result = (*indices, packed.columns)
        if not elements(result):
            return Run(result)
        params = packed.params(elements(indices), step.op.operands[0].dtype.itemsize)
        return Run(result, packed.call, params=params)


def _block_rows(value: ir.Value, facts: Facts) -> Weight | None:
    """Return a constant whose rows are block-quantized; None for others."""
    stored = facts.stored(value) if facts.is_constant(value) else None
    blocks = None if stored is None else stored.blocks
    fits = blocks is not None and not blocks.transposed and facts.rank(value) == 2
    return stored if fits else None


def _int8_rows(value: ir.Value, facts: Facts) -> Quantized | None:
    """Return the int8 storage of a constant, if each row has one scale and no zero point."""
    stored = facts.stored(value).quantized if facts.is_constant(value) else None
    if stored is None or (stored.axis != 0 and stored.scale.size != 1):
        return None
    zero = stored.zero
    return None if zero is not None and zero.array().any() else stored


def _check_gather(op: Op, facts: Facts) -> str | None:
    reason = check_dtype(op.required(0), facts, *ANY) or check_dtype(
        op.required(1), facts, ir.DataType.INT64, ir.DataType.INT32
    )
    if reason:
        return reason
    rank = facts.rank(op.input(0)) or 0
    axis = op.get("axis", 0)
    if not -rank <= axis < rank:
        return f"axis {axis} is not one of an input of rank {rank}"
    return None


def _gather(op: Op, builder: Builder) -> None:
    given, indices = op.required(0), op.required(1)
    axis = op.get("axis", 0) % builder.rank(given)
    stored = _int8_rows(given, builder.facts) if axis == 0 else None
    if stored is not None:
        # Only the gathered rows are dequantized.
        table = builder.constant_slot(given.name or "", stored.integers.view())
        scales = builder.constant_slot(f"{given.name} (scales)", stored.scale.view().reshape(-1))
        at = builder.slot_of(indices)
        builder.compute(GatherInt8(), [table, at, scales], op.output)
        return
    fits = axis == 0 and not builder.unfit.get(op.unfit_key)
    in_blocks = _block_rows(given, builder.facts) if fits else None
    if in_blocks is not None:
        builder.compute(GatherBlocks(in_blocks), [builder.slot_of(indices)], op.output)
        return
    narrow = builder.facts.weight(given).narrow if builder.facts.is_constant(given) else None
    if narrow is not None and builder.facts.is_float(given):
        # An embedding of narrow floats is not upcast as a whole, only the gathered rows are.
        table = builder.constant_slot(given.name or "", narrow.view())
        taken = Slot(op.output.name or "", table.dtype)
        builder.emit(Gather(axis), [table, builder.slot_of(indices)], taken)
        slot = builder.compute(Convert(), [taken], op.output)
        builder.set_exact(slot, builder.facts.dtype(op.output))
        return
    builder.compute(Gather(axis), [builder.slot_of(given), builder.slot_of(indices)], op.output)


def _check_gather_s8(op: Op, facts: Facts) -> str | None:
    table, scales = op.required(0), op.required(2)
    reason = check_dtype(table, facts, ir.DataType.INT8) or check_dtype(
        op.required(1), facts, ir.DataType.INT64, ir.DataType.INT32
    )
    if reason:
        return reason
    if facts.dtype(op.output) != ir.DataType.FLOAT or facts.dtype(scales) != ir.DataType.FLOAT:
        return "its rows become another type than float32"
    dims, sizes = facts.dims(table), facts.dims(scales)
    if not facts.is_constant(table) or not facts.is_constant(scales) or len(dims or ()) != 2:
        return "its table is not a constant matrix"
    if sizes not in ((), (1,), ((dims or ())[0], 1)):
        return "its scales are not of its rows"
    return None


def _gather_s8(op: Op, builder: Builder) -> None:
    facts = builder.facts
    table = builder.constant_slot(op.required(0).name or "", facts.array(op.required(0)))
    scales = facts.array(op.required(2)).reshape(-1)
    slots = (
        builder.slot_of(op.required(1)),
        builder.constant_slot(op.required(2).name or "", scales),
    )
    builder.compute(GatherInt8(), [table, *slots], op.output)


@record
class Where(Computation):
    """Elements of the second or third operand, selected by the condition, the first one."""

    mnemonic = "where"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        result = broadcast(*shapes)
        if not elements(result):
            return Run(result)
        strides = [kernels.broadcast_strides(shape, result) for shape in shapes]
        params = kernels.where(result, strides, step.op.output.dtype.itemsize)
        return Run(result, "NP_WHERE", params=params)


def _check_where(op: Op, facts: Facts) -> str | None:
    return check_dtype(op.required(0), facts, ir.DataType.BOOL) or check_same_dtype(
        op.inputs[1:], facts, *ANY
    )


def _where(op: Op, builder: Builder) -> None:
    slots = [builder.slot_of(op.required(index)) for index in range(3)]
    builder.compute(Where(), slots, op.output, identity(builder.rank(op.output)))


RULES: tuple[Rule, ...] = (
    *rules("Gather", lower=_gather, check=_check_gather),
    *rules("gather-s8", lower=_gather_s8, check=_check_gather_s8),
    *rules("Where", lower=_where, check=_check_where),
)
