"""Rotary embedding: pairs of elements rotated by angles that depend on the position of the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import attention_params, kernels


@record
class Rotary(Computation):
    """Rotary embedding of x in any layout (Su et al., RoFormer, 2021).

    Operands are x, the cosines and the sines, of up to four axes. Cosines and sines broadcast
    against x, except along the last axis: it has the rotated elements, or half as many if both
    elements of a pair share them. The result has the layout of x.

    Attributes:
        perms: layout of each operand; the last axis stays the last.
        interleaved: whether pairs are neighbours, not half of the rotated elements apart.
        rotated: number of elements of each row that are rotated; None for all.
    """

    mnemonic = "rotary"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    perms: tuple[Perm, ...]
    interleaved: bool = False
    rotated: int | None = None

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        views = [_rows(shape, perm) for shape, perm in zip(shapes, self.perms, strict=True)]
        depth = shapes[0][-1]
        rotated = depth if self.rotated is None else self.rotated
        width = shapes[1][-1]
        if shapes[2][-1] != width or width not in (rotated, rotated // 2) or rotated > depth:
            raise BackendError(
                f"{rotated} of {depth} elements cannot be rotated by {width} cosines and "
                f"{shapes[2][-1]} sines"
            )
        sizes = broadcast(*(shape for shape, _ in views))
        perm = self.perms[0]
        logical = (*sizes[len(sizes) - len(perm) + 1 :], depth)
        lies = tuple(logical[axis] for axis in perm)
        if not elements(lies):
            return Run(lies)
        strides = [steps for _, steps in (*views, _rows(lies, perm))]
        params = attention_params.rotary(
            sizes=sizes,
            depth=depth,
            rotated=rotated,
            strides=strides,
            interleaved=self.interleaved,
            halved=width != rotated,
        )
        return Run(lies, "NP_ROTARY", params=params)


def _rows(lies: Shape, perm: Perm) -> tuple[Shape, list[int]]:
    """Return sizes and strides of the three axes before rows, in the order of ONNX."""
    steps = kernels.dense_strides(lies)
    places = [perm.index(axis) for axis in range(len(perm) - 1)]
    sizes = tuple(lies[place] for place in places)
    strides = [0 if lies[place] == 1 else steps[place] for place in places]
    missing = 3 - len(places)
    return (1,) * missing + sizes, [0] * missing + strides


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    ranks = [facts.rank(value) or 0 for value in op.inputs]
    if not 2 <= ranks[0] <= 4 or max(ranks) > ranks[0] or 0 in ranks:
        return "its operands do not have two to four dimensions"
    return None


def _rotary(op: Op, builder: Builder) -> None:
    slots, perms = [], []
    for index in range(3):
        value = op.required(index)
        rank = builder.rank(value)
        perm = builder.layout(value)
        if perm[-1] != rank - 1:
            perm = identity(rank)
        slots.append(builder.slot_of(value, perm))
        perms.append(perm)
    rotary = Rotary(tuple(perms), op.get("interleaved", False), op.get("rotated", None))
    builder.compute(rotary, slots, op.output, perms[0])


RULES: tuple[Rule, ...] = (*rules("rotary", lower=_rotary, check=_check),)
