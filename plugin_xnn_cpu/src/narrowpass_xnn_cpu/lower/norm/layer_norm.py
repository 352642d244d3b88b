"""Layer and RMS normalization, optionally fused with the Add before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, common_layout, identity
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels


@record
class LayerNorm(Computation):
    """Layer or RMS normalization; see `kernels.layer_norm`.

    Operands are the rows, a scale, optionally a bias, and optionally a tensor of the same rank that
    is added to the rows before and broadcasts. With `keeps_sum` the result is [2, ...], the
    normalized rows and the sum.

    Attributes:
        axes: number of the last axes that form a row.
        epsilon: added to the variance.
        root_mean_square: whether no mean is subtracted.
        bias: whether there is a bias.
        added: whether a tensor is added before.
        keeps_sum: whether the sum is a result too.
    """

    mnemonic = "layer_norm"
    axes: int
    epsilon: float
    root_mean_square: bool = False
    bias: bool = False
    added: bool = False
    keeps_sum: bool = False

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return "add + layer-norm" if self.added else "layer-norm"

    def in_place(self) -> Sequence[int]:
        """See `Computation.in_place`."""
        return (0, 2 + self.bias) if self.added else (0,)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return None if self.keeps_sum else self.axes

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, *others = shapes
        columns = elements(shape[len(shape) - self.axes :])
        rows = shape[: len(shape) - self.axes]
        views = [rows]
        if self.added:
            added = others.pop()
            views.append(added[: len(rows)])
            if added[len(rows) :] != shape[len(rows) :]:
                raise BackendError(f"rows of {list(shape)} and {list(added)} differ in length")
        for other in others:
            if elements(other) != columns:
                raise BackendError(f"a scale or bias of {list(other)} does not fit {list(shape)}")
        sizes = broadcast(*views)
        result = (*sizes, *shape[len(rows) :])
        whole = (2, *result) if self.keeps_sum else result
        if not elements(result):
            return Run(whole)
        params = kernels.layer_norm(
            sizes,
            columns,
            [kernels.broadcast_strides(view, sizes) for view in views],
            self.epsilon,
            bias=self.bias,
            root_mean_square=self.root_mean_square,
            sum_offset=elements(result) if self.keeps_sum else 0,
        )
        return Run(whole, "NP_LAYER_NORM", params=params)


@record
class LeadingSlice(Computation):
    """A view of one index of the first axis of the operand.

    Attributes:
        index: along the first axis.
    """

    mnemonic = "leading_slice"
    kernel = "view"
    index: int

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        result = shapes[0][1:]
        return Run(result, view=self.index * elements(result) * step.op.output.dtype.itemsize)


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 4)
    if reason:
        return reason
    if any(value.uses() or value.name in facts.needed for value in op.outputs[1:]):
        return "its mean or deviation is used"
    rank = facts.rank(op.input(0)) or 0
    axis = op.get("axis", -1)
    if not -rank <= axis < rank:
        return f"axis {axis} is not one of an input of rank {rank}"
    for value in op.inputs[1:3]:
        if value is not None and facts.rank(value) != rank - axis % rank:
            return "its scale or bias is broadcast"
        pairs = zip(facts.dims(value) or (), (facts.dims(op.input(0)) or ())[axis:], strict=False)
        if value is not None and any(one == 1 != other for one, other in pairs):
            return "its scale or bias is broadcast"
    return None


def _layer_norm(op: Op, builder: Builder) -> None:
    rank = builder.rank(op.required(0))
    normalize(op, builder, rank - op.get("axis", -1) % rank, op.kind == "RMSNormalization")


def _check_pattern(op: Op, facts: Facts) -> str | None:
    return check_floats(op, facts, 4)


def _pattern(op: Op, builder: Builder) -> None:
    normalize(op, builder, 1, op.kind == "rms-norm")


def normalize(op: Op, builder: Builder, axes: int, root_mean_square: bool) -> None:
    """Emit the normalization of the last `axes` axes.

    Inputs of the operation are the rows, a scale or None, a bias or None, and a value to be added
    before or None. The attribute ``sum`` holds the output value of the sum, if it is read.
    """
    given, scale, bias, added = (op.input(index) for index in range(4))
    if given is None:
        raise BackendError("there is nothing to normalize")
    whole = [given] if added is None else [given, added]
    rank = builder.rank(given)
    perm = common_layout(builder, whole, rank)
    if perm[rank - axes :] != identity(rank)[rank - axes :]:
        perm = identity(rank)
    slots = [builder.slot_of(given, perm)]
    if scale is None:
        width = (builder.facts.dims(given) or (0,))[-1]
        slots.append(builder.constant_slot("ones", np.ones(width, np.float32)))
    slots += [builder.slot_of(value) for value in (scale, bias) if value is not None]
    if added is not None:
        slots.append(builder.slot_of(added, perm, rank=rank))
    total = op.get("sum", None)
    output = op.outputs[0]
    norm = LayerNorm(
        axes,
        op.get("epsilon", 1e-5),
        root_mean_square,
        bias=bias is not None,
        added=added is not None,
        keeps_sum=total is not None,
    )
    if total is None:
        builder.compute(norm, slots, output, perm)
        return
    both = builder.intermediate(norm, slots, output)
    for index, value in enumerate((output, total)):
        builder.compute(LeadingSlice(index), [both], value, perm)


RULES: tuple[Rule, ...] = (
    *rules("LayerNormalization", "RMSNormalization", lower=_layer_norm, check=_check),
    *rules("layer-norm", "rms-norm", lower=_pattern, check=_check_pattern),
)
