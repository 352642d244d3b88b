"""Matmul of two activations, which are read by strides in any layout."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.matmul.epilogue import WithEpilogue, emit
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lower.views import View
from narrowpass_xnn_cpu.lowered.op import PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import keyword_record
from narrowpass_xnn_cpu.native.own.batched import BATCH, Operand, Sizes, matmul


@keyword_record
class ComputedMatMul(WithEpilogue):
    """A batched matmul of two activations.

    Operands are [..., M, K] or [K], [..., K, N] or [K], optionally a bias [N], and the residual of
    the epilogue in the layout of the result. The result lacks M or N where an operand lacks it.

    Attributes:
        perms: layout of both operands.
        perm: layout of the result; the last axis stays the last.
        alpha: factor of the matmul.
        bias: whether there is a bias operand.
        deterministic: see `Numerics`.
    """

    mnemonic = "matmul_computed"
    kernel = "matmul"
    perms: tuple[Perm, Perm]
    perm: Perm
    alpha: float = 1.0
    bias: bool = False
    deterministic: bool = False

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`: accumulators are stored before a residual is read."""
        return ()

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        a, b = (View(shape, perm) for shape, perm in zip(shapes, self.perms, strict=False))
        (m, k), (inner, n) = _matrix(a.shape, 0), _matrix(b.shape, 1)
        if k != inner:
            raise BackendError(f"matrices {list(a.shape)} and {list(b.shape)} do not fit together")
        leading = broadcast(a.shape[:-2], b.shape[:-2])
        ends = (*((m,) if len(a.shape) > 1 else ()), *((n,) if len(b.shape) > 1 else ()))
        result = (*leading, *ends)
        lies = tuple(result[axis] for axis in self.perm)
        epilogue = self.fitting([shapes[0], *shapes[2 + self.bias :]], lies)
        if not elements(result):
            return Run(lies)
        if self.bias and shapes[2] != (n,):
            raise BackendError(f"a bias of {list(shapes[2])} does not fit {n} columns")
        out = View(lies, self.perm)
        params, workspace = matmul(
            Sizes((1,) * (BATCH - len(leading)) + leading, m, k, n),
            _operand(a.steps, 0, n),
            _operand(b.steps, 1, n),
            _result(out.steps, len(a.shape) > 1, len(b.shape) > 1),
            alpha=self.alpha,
            bias=self.bias,
            epilogue=epilogue,
            threads=sizing.pool.threads,
            deterministic=self.deterministic,
        )
        return Run(lies, "NP_MATMUL", params=params, workspace=workspace)


def _matrix(shape: Shape, second: int) -> tuple[int, int]:
    """Return rows and columns of the first or second operand; a vector is one row or one column."""
    if len(shape) > 1:
        return shape[-2], shape[-1]
    return (shape[0], 1) if second else (1, shape[0])


def _batch(steps: Sequence[int]) -> tuple[int, ...]:
    return (0,) * (BATCH - len(steps)) + tuple(steps)


def _operand(steps: Sequence[int], second: int, columns: int) -> Operand:
    if len(steps) > 1:
        column = 1 if second and columns == 1 else steps[-1]
        return Operand(_batch(steps[:-2]), steps[-2], column)
    return Operand(_batch(()), steps[0], 1) if second else Operand(_batch(()), 0, steps[0])


def _result(steps: Sequence[int], has_rows: bool, has_columns: bool) -> Operand:
    """Return the strides of a result that may lack rows or columns."""
    left = list(steps)
    column = left.pop() if has_columns else 1
    row = left.pop() if has_rows else 0
    return Operand(_batch(left), row, column or 1)


def _readable(builder: Builder, value: ir.Value) -> Perm:
    """Return a layout of an operand with dense rows or columns, without a copy if possible."""
    rank = builder.rank(value)
    if builder.has_layout(value, identity(rank)):
        return identity(rank)
    perm = builder.layout(value)
    return perm if perm[-1] >= rank - 2 else identity(rank)


def _result_layout(builder: Builder, output: ir.Value) -> Perm:
    """Return the layout that the only reader, a Transpose, needs; else that of ONNX."""
    rank = builder.rank(output)
    user = builder.facts.only_user(output)
    if user is None or user.op_type != "Transpose" or user.domain:
        return identity(rank)
    perm = user.attributes.get("perm")
    axes = tuple(perm.as_ints()) if perm is not None else identity(rank)[::-1]
    fits = sorted(axes) == list(range(rank)) and axes[-1:] == (rank - 1,)
    return axes if fits else identity(rank)


def lower_computed(
    op: Op,
    builder: Builder,
    *,
    transposed: tuple[bool, bool] = (False, False),
    bias: Slot | None = None,
    complete: bool = True,
) -> Slot | None:
    """Lower a matmul of the first two inputs of an operation, with its epilogue.

    Args:
        op: the operation; its attribute ``alpha`` scales the matmul.
        builder: of the partition.
        transposed: whether the last two axes of each operand are transposed.
        bias: [N], or None.
        complete: whether to emit the epilogue and the output of `op`.

    Returns:
        The slot of the matmul in the layout of ONNX, unless `complete`.
    """
    slots, perms = [], []
    for value, is_transposed in zip((op.required(0), op.required(1)), transposed, strict=True):
        perm = _readable(builder, value)
        slots.append(builder.slot_of(value, perm))
        if is_transposed:
            last = len(perm) - 1
            swap = {last: last - 1, last - 1: last}
            perm = tuple(swap.get(axis, axis) for axis in perm)
        perms.append(perm)
    a, b = slots
    alpha, both = float(op.get("alpha", 1.0)), (perms[0], perms[1])
    deterministic = builder.numerics.deterministic
    if not complete:
        perm = identity(builder.rank(op.output))
        part = ComputedMatMul(perms=both, perm=perm, alpha=alpha, deterministic=deterministic)
        return builder.intermediate(part, [a, b], op.output)
    perm = _result_layout(builder, op.output)
    matmul_ = ComputedMatMul(
        op.epilogue,
        op.residual_fits,
        perms=both,
        perm=perm,
        alpha=alpha,
        bias=bias is not None,
        deterministic=deterministic,
    )
    emit(op, builder, matmul_, [a, b, *(() if bias is None else (bias,))], perm)
    return None
