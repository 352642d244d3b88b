"""Rotary embedding: pairs of numbers turned by angles that follow from their row's position."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import broadcast
from narrowpass_xnn_cpu.native import attention_params, kernels
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements


class Rotary(Step):
    """Pairs of numbers in rows that lie anywhere, turned.

    Args:
        slots: x, the cosines and the sines, of up to four axes. Cosines and sines broadcast
            against x but along rows, which are as long as what is turned, or half as long where
            both of a pair share them.
        perms: for each of them the order that its axes lie in; the last one stays the last.
        output: the result, which lies as x does.
        interleaved: whether pairs lie side by side, and not half of what is turned apart.
        rotated: how many numbers of each row are turned; None for all.
    """

    in_place: Sequence[int] = (0,)
    kernel = "rotary"

    def __init__(
        self,
        slots: Sequence[Slot],
        perms: Sequence[Perm],
        output: Slot,
        *,
        interleaved: bool = False,
        rotated: int | None = None,
    ) -> None:
        super().__init__(slots, output)
        self._perms = tuple(perms)
        self._interleaved = interleaved
        self._rotated = rotated

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        views = [_rows(shape, perm) for shape, perm in zip(shapes, self._perms, strict=True)]
        depth = shapes[0][-1]
        rotated = depth if self._rotated is None else self._rotated
        width = shapes[1][-1]
        if shapes[2][-1] != width or width not in (rotated, rotated // 2) or rotated > depth:
            raise BackendError(
                f"{rotated} of {depth} numbers cannot be turned by {width} cosines and "
                f"{shapes[2][-1]} sines"
            )
        sizes = broadcast(*(shape for shape, _ in views))
        perm = self._perms[0]
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
            interleaved=self._interleaved,
            halved=width != rotated,
        )
        return Run(lies, "NP_ROTARY", params=params)


def _rows(lies: Shape, perm: Perm) -> tuple[Shape, list[int]]:
    """Give three sizes and strides of the axes before rows, in ONNX's order."""
    steps = kernels.dense_strides(lies)
    places = [perm.index(axis) for axis in range(len(perm) - 1)]
    sizes = tuple(lies[place] for place in places)
    strides = [0 if lies[place] == 1 else steps[place] for place in places]
    missing = 3 - len(places)
    return (1,) * missing + sizes, [0] * missing + strides


def _check(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 3)
    if reason:
        return reason
    ranks = [facts.rank(value) or 0 for value in op.inputs]
    if not 2 <= ranks[0] <= 4 or max(ranks) > ranks[0] or 0 in ranks:
        return "its operands do not have two to four dimensions"
    return None


@lowers("rotary", check=_check)
def _rotary(op: Op, builder: Builder) -> None:
    slots, perms = [], []
    for index in range(3):
        value = op.required(index)
        rank = builder.rank(value)
        perm = builder.layout(value)
        if perm[-1] != rank - 1:
            perm = identity(rank)
        slots.append(builder.at(value, perm))
        perms.append(perm)
    step = Rotary(
        slots,
        perms,
        builder.new(op.output),
        interleaved=op.get("interleaved", False),
        rotated=op.get("rotated", None),
    )
    builder.emit(step, op.output, perms[0])
