"""Matmuls with a constant of several matrices in blocks, as those of experts: each stays packed."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.matmul.choices import block_problem
from narrowpass_xnn_cpu.lower.matmul.epilogue import PLAIN, WithEpilogue, emit, emit_separately
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import keyword_record
from narrowpass_xnn_cpu.native.own.block_quantized import StackedMatmul
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import select
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@keyword_record
class StackedMatMul(WithEpilogue):
    """A matmul of rows and each of several constant matrices.

    The operand is float32 [M, K] or [1, M, K], the same rows for all matrices, or [E, M, K]; the
    result is [E, M, N].

    Attributes:
        weight: [E, K, N], block-quantized along K.
        activations: ``dynamic`` for rows that are quantized to int8 in blocks; else empty.
        deterministic: see `Numerics`.
    """

    mnemonic = "stacked_matmul"
    weight: Weight
    activations: str = ""
    deterministic: bool = False

    def kernel_name(self, op: LoweredOp, packed: StackedMatmul) -> str:
        """See `Computation.kernel_name`."""
        return f"fully connected of {self.weight.shape[0]} matrices"

    def precision(self, op: LoweredOp, packed: StackedMatmul) -> str:
        """See `Computation.precision`."""
        return block_problem(
            self.weight, None, self.epilogue, self.activations, deterministic=self.deterministic
        )[1]

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        problem, _ = block_problem(
            self.weight, None, self.epilogue, self.activations, deterministic=self.deterministic
        )
        found = select(problem, target).selection
        name = f"own fully connected of several matrices ({StackedMatmul.call})"
        return Selection(name, found.packing, found.reason)

    def pack(self, op: LoweredOp, session: Session | None) -> StackedMatmul:
        """See `Computation.pack`."""
        problem, _ = block_problem(
            self.weight, None, self.epilogue, self.activations, deterministic=self.deterministic
        )
        try:
            return StackedMatmul(problem, session)
        except BackendError as error:
            raise UnfitError(str(error)) from error

    def _problem(self) -> tuple[Matmul, str]:
        return block_problem(
            self.weight,
            None,
            self.epilogue,
            self.activations,
            deterministic=self.deterministic,
        )

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, packed = shapes[0], step.packed
        sets = shape[0] if len(shape) == 3 else 1
        if shape[-1] != packed.channels or sets not in (1, packed.matrices):
            raise BackendError(
                f"rows of {list(shape)} do not fit {packed.matrices} matrices for {packed.channels}"
            )
        result = (packed.matrices, shape[-2], packed.outputs)
        if not elements(result):
            return Run(result)
        params = packed.reshape(shape[-2], sizing.pool, shared_rows=sets < packed.matrices)
        return Run(result, packed.call, packed, params)


def is_stacked(op: Op, facts: Facts) -> bool:
    """Return whether a MatMul's constant has several matrices in blocks that a kernel takes.

    The leading axis of the result must be that of the constant.
    """
    matrix, rows = op.required(1), facts.dims(op.input(0))
    if not facts.is_constant(matrix) or facts.rank(matrix) != 3 or rows is None:
        return False
    weight = facts.stored(matrix)
    if weight.blocks is None or not weight.blocks.transposed or op.input(2) is not None:
        return False
    return len(rows) == 2 or (len(rows) == 3 and rows[0] in (1, weight.shape[0]))


def lower_stacked(op: Op, builder: Builder) -> bool:
    """Emit a matmul for which `is_stacked`; return whether its matrices fit the kernel."""
    reason = builder.unfit.get(op.unfit_key, "")
    if reason:
        op.unfit = reason  # `explain` has it
        return False
    rows = op.required(0)
    weight, perm = builder.facts.stored(op.required(1)), identity(3)
    operands = [builder.slot_of(rows, identity(builder.rank(rows)))]
    matmul = StackedMatMul(
        op.epilogue if op.residual is None else PLAIN,
        weight=weight,
        activations=op.activations,
        deterministic=builder.numerics.deterministic,
    )
    if op.residual is None:
        emit(op, builder, matmul, operands, perm)
    else:
        emit_separately(op, builder, matmul, operands, perm)
    return True
