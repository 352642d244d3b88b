"""Matmul of two computed operands, read by strides wherever their axes lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.ending import Ended, emit, residual_of
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lower.views import View
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators.matmul import BATCH, Operand, Sizes, matmul


class ComputedMatMul(Ended):
    """A matmul of two operands that are not known before a run, or of batches of them.

    Args:
        a: [..., M, K], or [K].
        b: [..., K, N], or [K].
        output: the result, without M or N where an operand lacks it.
        perms: the order that the axes of `a` and `b` lie in.
        perm: the order that the axes of the result are to lie in; the last one stays last.
        alpha: what the matmul is multiplied by.
        bias: [N], added to each row; None for none.
        epilogue: what becomes of results.
        residual: what is added, where the epilogue has that; it lies as the result does.
        fits: whether it surely has the shape of the result.
    """

    kernel = "matmul"

    def __init__(
        self,
        a: Slot,
        b: Slot,
        output: Slot,
        *,
        perms: tuple[Perm, Perm],
        perm: Perm,
        alpha: float = 1.0,
        bias: Slot | None = None,
        epilogue: Epilogue | None = None,
        residual: Slot | None = None,
        fits: bool = True,
    ) -> None:
        super().__init__(a, output, epilogue or Epilogue(), residual, fits)
        self.inputs = tuple(x for x in (a, b, bias, residual) if x is not None)
        # Accumulators are stored before a residual is read.
        self.in_place = ()
        self._perms, self._perm, self._alpha = perms, perm, alpha
        self._has_bias = bias is not None

    @property
    def alike(self) -> Hashable:
        """See `Step.alike`."""
        ends = self.epilogue, self._fits, len(self.inputs)
        return self._perms, self._perm, self._alpha, self._has_bias, ends

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        a, b = (View(shape, perm) for shape, perm in zip(shapes, self._perms, strict=False))
        (m, k), (inner, n) = _matrix(a.shape, 0), _matrix(b.shape, 1)
        if k != inner:
            raise BackendError(f"matrices {list(a.shape)} and {list(b.shape)} do not fit together")
        leading = broadcast(a.shape[:-2], b.shape[:-2])
        ends = (*((m,) if len(a.shape) > 1 else ()), *((n,) if len(b.shape) > 1 else ()))
        result = (*leading, *ends)
        lies = tuple(result[axis] for axis in self._perm)
        residual = shapes[2 + self._has_bias :]
        epilogue = self.fitting([shapes[0], *residual], lies)
        if not elements(result):
            return Run(lies)
        if self._has_bias and shapes[2] != (n,):
            raise BackendError(f"a bias of {list(shapes[2])} does not fit {n} columns")
        made = View(lies, self._perm)
        params, workspace = matmul(
            Sizes((1,) * (BATCH - len(leading)) + leading, m, k, n),
            _operand(a.steps, 0, n),
            _operand(b.steps, 1, n),
            _result(made.steps, len(a.shape) > 1, len(b.shape) > 1),
            alpha=self._alpha,
            bias=self._has_bias,
            epilogue=epilogue,
            threads=sizing.pool.threads,
        )
        return Run(lies, "NP_MATMUL", params=params, workspace=workspace)


def _matrix(shape: Shape, second: int) -> tuple[int, int]:
    """Give the rows and columns of the first or second operand, which may be a vector."""
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
    """Give the strides of a result whose rows or columns may be left out."""
    left = list(steps)
    column = left.pop() if has_columns else 1
    row = left.pop() if has_rows else 0
    return Operand(_batch(left), row, column or 1)


def _readable(builder: Builder, value: ir.Value) -> Perm:
    """Give an order of axes that an operand can be had in, rows or columns dense."""
    rank = builder.rank(value)
    if builder.has(value, identity(rank)):
        return identity(rank)
    perm = builder.layout(value)
    return perm if perm[-1] >= rank - 2 else identity(rank)


def _lies(builder: Builder, output: ir.Value) -> Perm:
    """Give the order of axes in which the result is wanted."""
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
    """Lower a matmul of the first two inputs of an operation, which end with its epilogue.

    Args:
        op: the operation; its attribute ``alpha`` scales the matmul.
        builder: of the partition.
        transposed: whether the operands have their last two axes the other way round.
        bias: [N], or None.
        complete: whether the result is the output of `op`, with its epilogue.

    Returns:
        The slot of the matmul, its axes in ONNX's order, where it is not `complete`.
    """
    slots, perms = [], []
    for value, turned in zip((op.required(0), op.required(1)), transposed, strict=True):
        perm = _readable(builder, value)
        slots.append(builder.at(value, perm))
        if turned:
            last = len(perm) - 1
            swap = {last: last - 1, last - 1: last}
            perm = tuple(swap.get(axis, axis) for axis in perm)
        perms.append(perm)
    a, b = slots
    alpha, both = float(op.get("alpha", 1.0)), (perms[0], perms[1])
    if not complete:
        perm = identity(builder.rank(op.output))
        part = builder.scratch(op.output)
        return builder.emit(ComputedMatMul(a, b, part, perms=both, perm=perm, alpha=alpha))
    perm = _lies(builder, op.output)
    step = ComputedMatMul(
        a,
        b,
        builder.new(op.output),
        perms=both,
        perm=perm,
        alpha=alpha,
        bias=bias,
        epilogue=op.epilogue,
        residual=residual_of(op, builder, perm),
        fits=op.residual_fits,
    )
    emit(op, builder, step, perm)
    return None
