"""Group, instance and local response normalization of images."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.native import elem_kernels


class GroupNorm(Step):
    """Groups of channels with mean 0 and variance 1, scaled and shifted.

    Args:
        slots: images, scale and bias.
        output: the result.
        groups: how many; 0 for one of each channel.
        epsilon: added to the variance.
        channels_last: whether the channels are the last axis, and not the second one.
        by_group: whether scale and bias are of groups.
    """

    in_place: Sequence[int] = (0,)

    def __init__(
        self,
        slots: Sequence[Slot],
        output: Slot,
        groups: int,
        epsilon: float,
        *,
        channels_last: bool,
        by_group: bool,
    ) -> None:
        super().__init__(slots, output)
        self.kernel = "group norm" if groups else "instance norm"
        self._groups, self._epsilon = groups, epsilon
        self._channels_last, self._by_group = channels_last, by_group

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape, *others = shapes
        channels = shape[-1] if self._channels_last else shape[1]
        groups = self._groups or channels
        wanted = groups if self._by_group else channels
        for other in others:
            if other != (wanted,):
                raise BackendError(f"a scale or bias of {list(other)} is not of {wanted} channels")
        if not elements(shape):
            return Run(shape)
        params = elem_kernels.group_norm(
            shape,
            groups,
            self._epsilon,
            channels_last=self._channels_last,
            by_group=self._by_group,
        )
        return Run(shape, "NP_GROUP_NORM", params=params)


def images_layout(rank: int, perm: Perm) -> tuple[Perm, bool]:
    """Give the order of axes in which images are taken, and whether channels come last there."""
    last = (0, *range(2, rank), 1)
    return (last, True) if perm == last and rank > 2 else (identity(rank), False)


def _check(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 3)
    if reason:
        return reason
    if (facts.rank(op.input(0)) or 0) < 2:
        return "its input has no channels"
    return None


@lowers("InstanceNormalization", "GroupNormalization", check=_check)
def _group_norm(op: Op, builder: Builder) -> None:
    given, scale, bias = (op.required(index) for index in range(3))
    perm, channels_last = images_layout(builder.rank(given), builder.layout(given))
    grouped = op.kind == "GroupNormalization"
    step = GroupNorm(
        [builder.at(given, perm), builder.at(scale), builder.at(bias)],
        builder.new(op.output),
        op.attributes["num_groups"] if grouped else 0,
        op.get("epsilon", 1e-5),
        channels_last=channels_last,
        by_group=grouped and op.version < 21,
    )
    builder.emit(step, op.output, perm)


class LocalResponse(Step):
    """Elements divided by a power of the squares of the channels around."""

    kernel = "local response norm"

    def __init__(
        self, given: Slot, output: Slot, size: int, numbers: Sequence[float], *, channels_last: bool
    ) -> None:
        super().__init__([given], output)
        self._size, self._numbers, self._channels_last = size, numbers, channels_last

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        alpha, beta, bias = self._numbers
        params = elem_kernels.lrn(
            shape, self._size, alpha, beta, bias, channels_last=self._channels_last
        )
        return Run(shape, "NP_LRN", params=params)


def _check_lrn(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts)
    if reason:
        return reason
    if (facts.rank(op.input(0)) or 0) < 2:
        return "its input has no channels"
    return None if op.get("size", 0) > 0 else "its size is not positive"


@lowers("LRN", check=_check_lrn)
def _lrn(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm, channels_last = images_layout(builder.rank(given), builder.layout(given))
    numbers = op.get("alpha", 1e-4), op.get("beta", 0.75), op.get("bias", 1.0)
    slots = builder.at(given, perm), builder.new(op.output)
    size = op.attributes["size"]
    builder.emit(LocalResponse(*slots, size, numbers, channels_last=channels_last), op.output, perm)
